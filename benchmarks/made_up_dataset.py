"""Finished datasets of made-up tokens, of any size, written without a build."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from benchmarks.made_up import DOCUMENT_TOKENS
from fineshards.shards import npy
from fineshards.shards.counts import Counts, FileReport, LabelCount
from fineshards.shards.job.job import JOB_NAME, Job
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import Leaks, MetadataFile, ShardRecord, SourceFile, blocks_name
from fineshards.shards.job.settings import Chat, Columns, Settings, Tokenizer
from fineshards.shards.layout import Layout, mask_name
from fineshards.shards.split_rule import FirstShards
from fineshards.storage.base import Storage
from fineshards.storage.checksums import checksum_to_base64, crc32c

EOT = 50256
Tokens = npt.NDArray[np.uint32]


def stream(start: int, stop: int) -> Tokens:
    """Tokens `[start, stop)` of the made-up stream, in which every EOT starts a document.

    Each token is computed from its position. Short runs of tokens are distinct over a long range,
    so a run shows its position.
    """
    positions = np.arange(start, stop, dtype=np.uint64)
    tokens = (positions * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)) % np.uint64(EOT)
    tokens[positions % np.uint64(DOCUMENT_TOKENS) == 0] = EOT
    return tokens.astype(np.uint32)


def uneven(tokens: int, mean: float) -> Callable[[int, int], Tokens]:
    """The stream, up to `tokens`, with documents as uneven in length as those of the web."""
    random, spread = np.random.default_rng(0), 1.0
    count = int(2 * tokens / mean) + 100
    sizes = random.lognormal(np.log(mean) - spread**2 / 2, spread, count).astype(np.int64) + 1
    starts = np.append(0, np.cumsum(sizes))

    def made(start: int, stop: int) -> Tokens:
        found = stream(start, stop)
        found[found == EOT] = 0
        low, high = np.searchsorted(starts, (start, stop)).tolist()
        found[starts[low:high] - start] = EOT
        return found

    return made


def make_dataset(
    storage: Storage,
    tokens: int,
    shard_tokens: int,
    *,
    test_shards: int = 0,
    dtype: str = "uint32",
    files: int = 1,
    empty: bool = False,
    made: Callable[[int, int], Tokens] = stream,
    learned: Callable[[int, int], npt.NDArray[np.bool_]] | None = None,
) -> None:
    """Writes the shards and the manifest of a dataset; there are no document tables or sources.

    tokens: how many tokens of `made` to write. files: source files in the manifest.
    empty: writes no shards, for readers of the manifest alone. made: gives the tokens of a range.
    learned: which tokens of a range are learned, for loss masks; None for texts.
    """
    tokenizer = Tokenizer("tiktoken", "made_up", "", "", (("<|endoftext|>", EOT),), EOT, 50257, "")
    rule = FirstShards(test_shards)
    settings = Settings(Columns("text", "id", False), tokenizer, shard_tokens, rule, 1, dtype)
    if learned is not None:
        columns = Columns("text", "id", False, conversations=True)
        settings = replace(settings, columns=columns, chat=Chat("0" * 64, ("assistant",), (), ""))
    sources = tuple(
        SourceFile(number, f"/made-up/{number:05d}.parquet", 1, "mtime:0", "parquet", "none")
        for number in range(files)
    )
    layout = Layout.plan([tokens], shard_tokens, rule)
    records, documents = [], 0
    for window, key in enumerate([shard.key for shard in layout.shards()]):
        start = window * shard_tokens
        content = made(start, start + layout.shard_length(key))
        name, starts = layout.shard_name(key), int(np.count_nonzero(content == EOT))
        header = npy.header(len(content), settings.token_dtype)
        body = content.astype(settings.token_dtype).tobytes()
        if not empty:
            with storage.create(name, durable=False) as file:
                file.write(header)
                file.write(body)
        of_mask: dict[str, Any] = {}
        if learned is not None:
            bits = learned(start, start + len(content))
            mask = npy.header(-(-len(bits) // 8), np.dtype(np.uint8))
            mask += np.packbits(bits, bitorder="little").tobytes()
            with storage.create(mask_name(name), durable=False) as file:
                file.write(mask)
            of_mask = {"mask_bytes": len(mask), "mask_crc32c": checksum_to_base64(crc32c(mask))}
            of_mask["learned"] = int(bits.sum())
        records.append(
            ShardRecord(
                **of_mask,
                name=name,
                split=key.split,
                index=key.index,
                tokens=len(content),
                bytes=npy.file_bytes(len(content), settings.token_dtype),
                crc32c=checksum_to_base64(crc32c(body, crc32c(header))),
                pieces=starts,
                documents=starts,
                first_document=documents,
                table_bytes=0,
                table_crc32c="AAAAAA==",
            )
        )
        documents += starts
    job = Job(settings, sources, {})
    names = (JOB_NAME, blocks_name(1), *settings.stored_files)
    metadata = [MetadataFile(name, 0, "AAAAAA==") for name in names]
    all_learned = sum(record.learned or 0 for record in records)
    reports = _reports(files, documents, tokens, all_learned)
    Manifest.of(job, layout, records, reports, metadata, Leaks(0, 0)).save(storage)


def _reports(files: int, documents: int, tokens: int, learned: int) -> Iterator[FileReport]:
    """Reports with labels, as for a crawl; the first file takes the remainders."""
    for file in range(files):
        share = tokens // files + (tokens % files if file == 0 else 0)
        starts = documents // files + (documents % files if file == 0 else 0)
        labels = (LabelCount("language", "en", starts, share),)
        counts = Counts(
            rows=starts,
            documents=starts,
            tokens=share,
            text_bytes=4 * share,
            labels=labels,
            learned=0 if file else learned,
        )
        yield FileReport(file, 1, counts)
