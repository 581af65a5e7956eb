"""Fill in the middle: builds compared with Megatron's rule, written out, with hashes for chance."""

import doctest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash
from msgspec import convert, to_builtins
from support.kills import kill
from support.oracle import EOT, cut, files_in, shards_in, side_of, streams_of, tokens_of

import fineshards
from fineshards.cli.cli import main
from fineshards.config import BuildConfig
from fineshards.encoders import fill_in_middle
from fineshards.errors import UsageError
from fineshards.pipeline.launch import describe_job
from fineshards.shards.job.settings import Settings

PREFIX, MIDDLE, SUFFIX = 100258, 100259, 100260
TOKENS = "<|fim_prefix|>,<|fim_middle|>,100260"


class Draws:
    """The numbers that Megatron takes from numpy's RandomState, of a document's place instead."""

    def __init__(self, file: int, row: int) -> None:
        seed = int.from_bytes(b"fs-infil", "big")
        key = f"{file}:{row}"
        draws = iter([xxhash.xxh3_64_intdigest(key.encode(), seed + number) for number in range(4)])
        # Megatron asks in the order 0, 2 and 3, 1.
        first, second, *cuts = draws
        self._left = iter([first, *cuts, second])

    def binomial(self, rate: float) -> bool:
        return next(self._left) / 2**64 < rate

    def randint(self, high: int) -> int:
        return next(self._left) * high // 2**64


def permuted(text: str, draws: Draws, rate: float, spm_rate: float) -> list[int]:
    """What `_permute` of Megatron's GPTFIMDataset does, where segments that are empty are left."""
    if not text or not draws.binomial(rate):
        return [*tokens_of(text)]
    first, second = sorted(draws.randint(len(text) + 1) for _ in range(2))
    prefix, middle, suffix = map(tokens_of, (text[:first], text[first:second], text[second:]))
    if draws.binomial(spm_rate):
        return [PREFIX, SUFFIX, *suffix, MIDDLE, *prefix, *middle]
    return [PREFIX, *prefix, SUFFIX, *suffix, MIDDLE, *middle]


@pytest.fixture
def inputs(sample: Path, tmp_path: Path) -> list[Path]:
    """Two files of the sample, with empty and short documents, and other scripts."""
    table = pq.read_table(sample).select(["text"])
    odd = ["", "a", "é", "😀", "日本語 " * 50, "<|fim_prefix|>", "\n", ""]
    paths = []
    for number in range(2):
        texts = table["text"].to_pylist()[40 * number : 40 * (number + 1)] + odd
        paths.append(tmp_path / f"in{number}.parquet")
        pq.write_table(table.from_pydict({"text": texts}), paths[-1], row_group_size=17)
    return paths


def expected(paths: list[Path], rate: float, spm_rate: float) -> dict[str, bytes]:
    streams: dict[str, list[int]] = {"test": [], "train": []}
    for file, path in enumerate(paths):
        for row, text in enumerate(pq.read_table(path)["text"].to_pylist()):
            tokens = permuted(text, Draws(file, row), rate, spm_rate)
            streams[side_of(text, "0.2")] += [EOT, *tokens]
    return cut(streams["test"], 5_000, 10**9) | cut(streams["train"], 5_000, 0)


def flags(fim: str = "0.5,0.5") -> list[str]:
    return ["--fim", fim, "--fim_tokens", TOKENS, "--shard_tokens=5000", "--test_fraction=0.2"]


def build(paths: list[Path], folder: Path, *more: str) -> Path:
    given = [f"--input={path}" for path in paths]
    assert main(["build", *given, f"--output={folder}", *flags(), *more]) == 0
    return folder


@pytest.mark.parametrize("rates", ["0.5,0.5", "1,0", "1,1", "0.3,0.9", "0,1"])
def test_a_build_has_the_tokens_of_megatrons_rule(
    inputs: list[Path], tmp_path: Path, rates: str
) -> None:
    folder = build(inputs, tmp_path / "out", "--fim", rates)
    assert shards_in(folder) == expected(inputs, *map(float, rates.split(",")))
    assert not fineshards.verify(folder, sample="100%").problems


def test_no_text_is_made_of_them(inputs: list[Path], tmp_path: Path) -> None:
    folder = build(inputs, tmp_path / "out")
    with pytest.raises(UsageError, match="rearranged by --fim"):
        fineshards.export(folder, to="text", output=tmp_path / "text")
    assert not (tmp_path / "text").exists()


def test_blocks_engines_appends_restarts_and_repairs_change_nothing(
    inputs: list[Path], tmp_path: Path
) -> None:
    shards = expected(inputs, 0.5, 0.5)
    assert shards_in(build(inputs, tmp_path / "blocks", "--block_bytes=1")) == shards
    assert shards_in(build(inputs, tmp_path / "slow", "--tokenizer_engine=tiktoken")) == shards

    killed = tmp_path / "killed"
    command = [f"--input={path}" for path in inputs]
    command += [f"--output={killed}", "--block_bytes=1", "--workers=1", *flags()]
    kill("replace:train_0001.npy", "build", *command)
    assert main(["build", *command]) == 0
    assert shards_in(killed) == shards

    grown = build(inputs[:1], tmp_path / "grown")
    assert main(["append", str(grown), f"--input={inputs[1]}"]) == 0
    assert streams_of(shards_in(grown)) == streams_of(shards)

    before = files_in(grown)
    for name in ("train/train_0000.npy", "metadata/documents/train_0001.parquet"):
        (grown / name).unlink()
    assert main(["repair", str(grown)]) == 0
    assert files_in(grown) == before
    assert not fineshards.verify(grown, sample="100%").problems


def test_a_shuffle_keeps_the_documents(inputs: list[Path], tmp_path: Path) -> None:
    plain = build(inputs, tmp_path / "plain")
    shuffled = build(inputs, tmp_path / "shuffled", "--shuffle_seed=7")
    assert [*documents(plain)] == [*documents(shuffled)]


def documents(folder: Path) -> Iterator[tuple[Any, ...]]:
    found: dict[tuple[str, int], list[Any]] = {}
    for name in sorted(shards_in(folder)):
        tokens = np.load(folder / name)
        table = pq.read_table(folder / f"metadata/documents/{Path(name).stem}.parquet")
        for row in table.to_pylist():
            part = tokens[row["offset"] : row["offset"] + row["length"]].tolist()
            found.setdefault((row["file"], row["row"]), []).append((row["start"], part))
    for place, parts in sorted(found.items()):
        yield (place, [token for _, part in sorted(parts) for token in part])


def test_records_have_the_rule_only_where_it_is_used(inputs: list[Path], tmp_path: Path) -> None:
    def settings(**more: Any) -> Any:
        config = BuildConfig(input=inputs[0], output=tmp_path / "none", **more)
        return describe_job(config)[0].settings

    with_rule = settings(fim="0.50,1/4", fim_tokens=TOKENS)
    stored = to_builtins(with_rule)
    rule = {"rate": "1/2", "spm_rate": "1/4", "prefix": PREFIX, "middle": MIDDLE, "suffix": SUFFIX}
    assert stored["fim"] == rule
    assert convert(stored, Settings) == with_rule
    assert "fim" not in to_builtins(settings())
    for damage in ({"rate": "2"}, {"middle": 10**9}, {"spm_rate": "-1"}):
        with pytest.raises(ValueError, match=r"unknown shares|not the size"):
            convert(stored | {"fim": rule | damage}, Settings)
    assert with_rule.differences(settings()) == [
        "--fim: was '1/2,1/4', now None",
        f"--fim_tokens: was {(PREFIX, MIDDLE, SUFFIX)}, now None",
    ]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"fim": "0.5,0.5"}, "--fim goes with --fim_tokens"),
        ({"fim_tokens": TOKENS}, "--fim_tokens goes with --fim"),
        ({"fim": "0.5", "fim_tokens": TOKENS}, "--fim must be two shares"),
        ({"fim": "0.5,1.5", "fim_tokens": TOKENS}, "--fim must lie between 0 and 1"),
        ({"fim": "0.5,x", "fim_tokens": TOKENS}, "--fim must be a number such as 0.1"),
        ({"fim": "1,1", "fim_tokens": TOKENS, "chat_template": "chatml"}, "exclude each other"),
        ({"fim": "1,1", "fim_tokens": "a,b,c"}, "give three special tokens of cl100k_base"),
        ({"fim": "1,1", "fim_tokens": "100258,100258,100260"}, "give three special tokens"),
        ({"fim": "1,1", "fim_tokens": f"{EOT},100258,100260"}, "documents begin with the EOT"),
    ],
)
def test_flags_that_do_not_fit_are_refused(
    inputs: list[Path], given: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        describe_job(BuildConfig(input=inputs[0], output="out", **given))  # type: ignore[arg-type]
    assert sentence in str(caught.value)


def test_the_example() -> None:
    assert doctest.testmod(fill_in_middle).failed == 0
