"""What is exported and imported again has the bytes that it had."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.growing import build, made_up_rows, write_rows
from support.oracle import shards_in
from support.tokenizer_files import save, train

import fineshards
from fineshards.cli.cli import main

ROWS = made_up_rows(1, 100)
# The files of a split that hold tokens, and whether the reader must be told their type.
FILES = {
    "megatron": "{split}_*.bin",
    "datatrove": "{split}/*.ds",
    "olmo": "{split}/*.npy",
    "raw": "{word}*.bin",
    "llmc": "*_{word}_*.bin",
    "nemo": "*_{word}_*.bin",
    "mds": "{split}/*.mds.zstd",
    "litdata": "{split}",
    "parquet": "{split}-*.parquet",
    "hf-arrow": "{split}/*.arrow",
}
# The EOT leads in these.
BEGINNING = ("llmc", "nemo")
NEEDS_TYPE = ("olmo", "raw", "litdata")
MORE = {"mds": {"compression": "zstd"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("round")
    write_rows(folder / "rows.parquet", ROWS)
    save(
        train("gpt2", [row["text"] for row in ROWS if row["text"]], 300), folder / "tokenizer.json"
    )
    return folder


@pytest.fixture(scope="module", params=["uint16", "shuffled", "one stream"])
def dataset(request: pytest.FixtureRequest, folder: Path) -> tuple[Path, list[str]]:
    """A dataset, and the flags of its tokenizer and its shards."""
    flags = ["--shard_tokens=300", "--tokenizer=cl100k_base"]
    if request.param == "uint16":
        flags[1:] = [f"--tokenizer={folder}/tokenizer.json", "--dtype=uint16"]
    split = ["--test_shards=2"] if request.param == "one stream" else ["--test_fraction=0.2"]
    order = ["--shuffle_seed=3"] if request.param == "shuffled" else []
    out = folder / request.param.replace(" ", "_")
    build(out, folder / "rows.parquet", *flags, *split, *order)
    return out, flags


@pytest.mark.long
@pytest.mark.parametrize(
    ("to", "side"),
    [
        (to, side)
        for to in FILES
        for side in ("begin", "end")
        if to not in BEGINNING or side == "begin"
    ],
)
def test_an_import_of_an_export_has_the_bytes_of_the_dataset(
    dataset: tuple[Path, list[str]], to: str, side: str, tmp_path: Path
) -> None:
    source, flags = dataset
    # Documents straddle files where their EOT says where they begin.
    whole = {("raw", "end"): None, ("litdata", "end"): 1_000_000}
    size = whole.get((to, side), 150 if to in BEGINNING else 700)
    one_stream = source.name == "one_stream"
    split = "all" if one_stream else None
    more = {"split": split, **MORE.get(to, {})}
    fineshards.export(source, tmp_path / "x", to, eot=side, tokens_per_file=size, **more)
    splits = {"test": "val", "train": "train"}
    patterns = {
        name: str(tmp_path / "x" / FILES[to].format(split=name, word=word))
        for name, word in ({"all": "all"} if one_stream else splits).items()
    }
    arguments = ["import", f"--from={to}", f"--eot_side={side}", f"--output={tmp_path}/again"]
    if to in NEEDS_TYPE:
        arguments.append(f"--source_dtype={'uint16' if source.name == 'uint16' else 'uint32'}")
    if one_stream:
        arguments += [f"--input={patterns['all']}", "--test_shards=2"]
    else:
        arguments += [f"--input={patterns['train']}", f"--test_input={patterns['test']}"]
    assert main([*arguments, *flags]) == 0
    assert shards_in(tmp_path / "again") == shards_in(source)
    assert fineshards.verify(tmp_path / "again", sample=100).ok
