"""Exports of a dataset that was appended to, with short shards in the middle, are of one build."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.conversations import TEMPLATE, made_up, write
from support.growing import append, build, made_up_rows, write_rows
from support.oracle import files_in
from support.tokenizer_files import save, train

import fineshards
from fineshards.exports.format import EXPORTS

SHARD = 300
OPTIONS: dict[str, dict[str, Any]] = {"mds": {"sequence_length": 64}, "text": {"columns": "group"}}


@pytest.fixture(scope="module", params=["--test_fraction=0.3", "--test_shards=2"])
def texts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of three generations in `out/`, and one of all files in `once/`; of uint16."""
    folder = tmp_path_factory.mktemp("texts")
    rows = [made_up_rows(seed, 40) for seed in (1, 2, 3)]
    files = [write_rows(folder / f"{n}.parquet", each) for n, each in enumerate(rows)]
    tokenizer = train("gpt2", [row["text"] for row in rows[0] if row["text"]], 300)
    flags = [f"--tokenizer={save(tokenizer, folder / 'tokenizer.json')}", "--dtype=uint16"]
    return grown_and_once(folder, files, *flags, f"--shard_tokens={SHARD}", request.param)


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of conversations, in shards whose masks have bits without a token."""
    folder = tmp_path_factory.mktemp("chats")
    (folder / "chat.jinja").write_text(TEMPLATE)
    files = [write(folder / f"{n}.jsonl", made_up(30, n)) for n in range(3)]
    flags = (f"--chat_template={folder}/chat.jinja", "--shard_tokens=1001", "--test_fraction=0.3")
    return grown_and_once(folder, files, *flags)


def grown_and_once(folder: Path, files: list[Path], *flags: str) -> Path:
    build(folder / "once", *files, *flags)
    build(folder / "out", files[0], *flags)
    for file in files[1:]:
        append(folder / "out", file)
    lengths = [len(np.load(shard)) for shard in sorted((folder / "out/train").iterdir())]
    assert min(lengths[:-1]) < max(lengths)
    return folder


def exported(folder: Path, output: Path, to: str, **options: Any) -> tuple[Any, dict[str, bytes]]:
    """The totals and the files of an export, without its record."""
    found = []
    for name in ("once", "out"):
        export = fineshards.export(folder / name, output / name, to, **options)
        files = files_in(output / name)
        record = json.loads(files.pop("export.json"))
        assert record["dataset"]["generation"] == (3 if name == "out" else 1)
        assert fineshards.verify(output / name).ok
        found.append((export.splits, files))
    assert found[0] == found[1]
    return found[0]


@pytest.mark.growing
@pytest.mark.parametrize("to", EXPORTS)
def test_every_format_holds_what_it_holds_of_one_build(
    texts: Path, to: str, tmp_path: Path
) -> None:
    options = OPTIONS.get(to, {})
    exported(texts, tmp_path / "whole", to, **options)
    if EXPORTS[to].tokens_per_file is not None:
        exported(texts, tmp_path / "cut", to, tokens_per_file=700, **options)


@pytest.mark.growing
@pytest.mark.parametrize("to", ["megatron", "olmo", "parquet", "hf-arrow", "mds"])
def test_what_is_learned_is_that_of_one_build(chats: Path, to: str, tmp_path: Path) -> None:
    options = OPTIONS.get(to, {}) | ({"no_masks": True} if to == "mds" else {})
    exported(chats, tmp_path, to, **options)
