"""Token files without an index: documents that straddle files, blocks and reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.token_files import write_litdata, write_mds, write_plain, write_with_header

from fineshards.errors import InputError
from fineshards.shards.job.import_record import Imported
from fineshards.shards.job.settings import Columns
from fineshards.sources.formats import token_streams
from fineshards.sources.formats.token_finding import find_token_files
from fineshards.sources.formats.token_streams import with_continuations
from fineshards.sources.reading import discover_blocks, read_block

EOT = 9
BODIES = st.lists(st.lists(st.integers(0, 8), max_size=6), min_size=1, max_size=12)


def documents_in(
    folder: Path, imported: Imported, block_bytes: int
) -> list[tuple[int, int, list[int]]]:
    """The file, the row and the tokens of each document, without EOT."""
    files = with_continuations(find_token_files(imported.kind, [str(folder)]), imported)
    columns = Columns("input_ids", "id", id_required=False, imported=imported)
    return [
        (file.index, row, np.frombuffer(text, "<u4").tolist())
        for file in files
        for block in discover_blocks(file, columns, block_bytes)
        for rows in read_block(file, columns, block)
        for row, text in zip(rows.numbers.tolist(), rows.texts.to_pylist(), strict=True)
    ]


def expected_of(
    bodies: Sequence[list[int]], starts: Sequence[int], cuts: Sequence[int]
) -> list[tuple[int, int, list[int]]]:
    """Each document belongs to the file that its first token is in."""
    rows: dict[int, int] = {}
    found = []
    for body, start in zip(bodies, starts, strict=True):
        file = sum(cut <= start for cut in cuts[1:])
        found.append((file, rows.setdefault(file, 0), body))
        rows[file] += 1
    return found


@given(
    bodies=BODIES,
    data=st.data(),
    block_bytes=st.integers(1, 40),
    batch=st.sampled_from([1, 2, 3, 7, 100]),
)
def test_documents_may_go_on_in_the_following_files(
    bodies: list[list[int]],
    data: st.DataObject,
    block_bytes: int,
    batch: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    stream = [token for body in bodies for token in [EOT, *body]]
    inner = data.draw(st.lists(st.integers(0, len(stream)), max_size=6))
    cuts = [0, *sorted(inner), len(stream)]
    folder = tmp_path_factory.mktemp("files")
    for number, (start, stop) in enumerate(pairwise(cuts)):
        magic = data.draw(st.sampled_from([20240520, 20240801, 278895051]))
        write_with_header(folder / f"{number}.bin", stream[start:stop], magic)
    starts = [at for at, token in enumerate(stream) if token == EOT]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_streams, "BATCH_TOKENS", batch)
        found = documents_in(folder, Imported("llmc", "begin", EOT, 10, None), block_bytes)
    assert found == expected_of(bodies, starts, cuts[:-1])


@given(
    bodies=BODIES,
    data=st.data(),
    block_bytes=st.integers(1, 40),
    batch=st.sampled_from([1, 2, 3, 7, 100]),
    kind=st.sampled_from(["mds", "mds.zstd", "mds rows", "litdata"]),
)
def test_documents_may_go_on_in_the_next_row_and_shard(
    bodies: list[list[int]],
    data: st.DataObject,
    block_bytes: int,
    batch: int,
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """More than ten shards, whose names do not sort as their numbers do."""
    stream = np.array([token for body in bodies for token in [EOT, *body]], np.uint32)
    if kind == "mds rows":
        stream = stream[: len(stream) // 2 * 2]
    size = 2 if kind == "mds rows" else 1
    inner = data.draw(st.lists(st.integers(0, len(stream) // size), min_size=11, max_size=13))
    cuts = [0, *sorted(cut * size for cut in inner), len(stream)]
    folder = tmp_path_factory.mktemp("files")
    for number, (start, stop) in enumerate(pairwise(cuts)):
        part = stream[start:stop]
        # MDS has no empty rows.
        borders = (
            sorted(data.draw(st.sets(st.integers(1, len(part) - 1), max_size=3)))
            if len(part) > 1
            else []
        )
        rows = np.split(part, borders) if len(part) else []
        if kind == "litdata":
            write_litdata(folder / f"chunk-0-{number}.bin", rows, "<u2")
        elif kind == "mds rows":
            write_mds(folder / f"shard.{number:05d}.mds", [*part.reshape(-1, 2)], length=2)
        else:
            write_mds(
                folder / f"shard.{number:05d}.{kind}",
                rows,
                data.draw(st.sampled_from(["int64", "uint16"])),
            )
    starts = [at for at, token in enumerate(stream) if token == EOT]
    layout, dtype = ("litdata", "uint16") if kind == "litdata" else ("mds", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_streams, "BATCH_TOKENS", batch)
        found = documents_in(folder, Imported(layout, "begin", EOT, 10, dtype), block_bytes)
    ends = [*starts[1:], len(stream)]
    whole = [stream[at + 1 : end].tolist() for at, end in zip(starts, ends, strict=True)]
    assert found == expected_of(whole, starts, cuts[:-1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], "its items must follow each other to its end"),
        (lambda content: b"", "it has 0 bytes"),
        (lambda content: b"\xff\xff" + content[2:], "its first number, of its items, is 65,535"),
        (lambda content: content.replace(b"ndarray:", b"bytes:::"), "its column is bytes:::"),
        (lambda content: content.replace(b"column_sizes", b"column_names"), "but 'column_sizes'"),
        (
            lambda content: content.replace(b"ndarray:uint32", b"ndarray:uint64"),
            "row 0 is no array",
        ),
    ],
)
def test_a_damaged_shard_is_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    path = write_mds(tmp_path / "shard.00000.mds", [np.array([EOT, 1, 2], np.uint32)])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=message):
        documents_in(tmp_path, Imported("mds", "begin", EOT, 10, None), 100)


@given(bodies=BODIES, block_bytes=st.integers(1, 40), batch=st.sampled_from([1, 2, 3, 7, 100]))
def test_documents_that_end_with_their_eot_are_whole_in_a_file(
    bodies: list[list[int]], block_bytes: int, batch: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("files")
    for number, part in enumerate([bodies[:3], [], bodies[3:]]):
        documents = [np.array([*body, EOT], np.uint32) for body in part]
        write_plain(folder / f"{number}.npy", documents, "<u2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_streams, "BATCH_TOKENS", batch)
        found = documents_in(folder, Imported("olmo", "end", EOT, 10, "uint16"), block_bytes)
    files = [0] * len(bodies[:3]) + [2] * len(bodies[3:])
    rows = [*range(len(bodies[:3])), *range(len(bodies[3:]))]
    assert found == list(zip(files, rows, bodies, strict=True))


def test_a_document_of_several_reads_is_one_document(tmp_path: Path) -> None:
    tokens = np.random.default_rng(1).integers(0, 9, 3_000_000, np.uint32)
    write_plain(tmp_path / "0.bin", [np.array([EOT], np.uint32), tokens[:2_500_000]])
    write_plain(tmp_path / "1.bin", [tokens[2_500_000:], np.array([EOT, 5], np.uint32)])
    found = documents_in(tmp_path, Imported("raw", "begin", EOT, 10, "uint32"), 1 << 20)
    assert [(file, row, len(body)) for file, row, body in found] == [(0, 0, 3_000_000), (1, 0, 1)]
    assert found[0][2] == tokens.tolist()


def test_a_first_file_that_begins_within_a_document_is_refused(tmp_path: Path) -> None:
    write_with_header(tmp_path / "0.bin", [1, 2, EOT, 3])
    with pytest.raises(InputError, match=r"0\.bin: its first token is 1, expected the EOT 9"):
        documents_in(tmp_path, Imported("llmc", "begin", EOT, 10, None), 100)


def test_files_of_a_split_each_go_on_only_in_those_that_follow(tmp_path: Path) -> None:
    for number, tokens in enumerate([[EOT, 1], [2], [], [3, 4], [5, EOT], [6], [EOT]]):
        write_with_header(tmp_path / f"{number}.bin", tokens)
    imported = Imported("llmc", "begin", EOT, 10, None)
    files = with_continuations(find_token_files("llmc", [str(tmp_path)]), imported)
    names = [[Path(each.path).name for each in file.companions] for file in files]
    assert names == [["1.bin", "3.bin", "4.bin"], [], [], [], ["5.bin"], [], []]
