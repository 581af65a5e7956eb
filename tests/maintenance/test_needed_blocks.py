"""A repair reads the blocks that a shard is made of, and no others; and makes their table again."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.conversations import TEMPLATE, made_up
from support.conversations import write as write_chats
from support.damage import cut, flip_middle
from support.growing import append, build, made_up_rows, write_rows
from support.oracle import files_in

import fineshards
from fineshards.cli.cli import main

pytestmark = pytest.mark.growing
# Rows of a block: each row group is one.
ROWS = 11
KINDS = {
    "document": ["--test_fraction=0.3"],
    "shards": ["--test_shards=2"],
    "chats": ["--test_fraction=0.3"],
    "shuffled": ["--test_shards=2", "--shuffle_seed=5"],
}


@pytest.fixture(scope="module", params=KINDS)
def grown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two generations, of three files of parquet, in which documents are redacted."""
    folder = tmp_path_factory.mktemp(request.param)
    flags = ["--shard_tokens=700", "--block_bytes=1", *KINDS[request.param]]
    files = [folder / f"{number}.parquet" for number in range(3)]
    for number, path in enumerate(files):
        if request.param != "chats":
            write_rows(path, made_up_rows(number, 60))
            continue
        write_chats(path, made_up(60, number))
        pq.write_table(pq.read_table(path), path, row_group_size=ROWS)
    if request.param == "chats":
        (folder / "chat.jinja").write_text(TEMPLATE)
        flags.append(f"--chat_template={folder}/chat.jinja")
    build(folder / "out", *files[:2], *flags)
    append(folder / "out", files[2])
    assert main(["redact", str(folder / "out"), "--documents", "5", "31", "120"]) == 0
    return folder


def blocks_in(table: Path) -> set[tuple[str, int]]:
    """The blocks of the documents in a shard, by its table."""
    rows = pq.read_table(table, columns=["file", "row"]).to_pylist()
    return {(row["file"], row["row"] // ROWS) for row in rows}


def test_only_the_blocks_of_a_shard_are_read(
    grown: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = grown / "out"
    whole = files_in(folder)
    tables = sorted((folder / "metadata/documents").iterdir())
    assert len(tables) > 11
    for table in tables[::4]:
        blocks = blocks_in(table)
        (folder / f"{table.stem.split('_')[0]}/{table.stem}.npy").unlink()
        flip_middle(table)
        capsys.readouterr()
        assert main(["repair", str(folder), "--json"]) == 0
        done = json.loads(capsys.readouterr().out)
        if "shuffled" in grown.name:  # a shard has documents of all blocks of its generation
            assert (len(done["sources"]), done["blocks"]) in ((2, 12), (1, 6))
        else:
            assert done["sources"] == sorted({f"{grown}/{file}" for file, _ in blocks})
            assert done["blocks"] == len(blocks) < 18
    assert files_in(folder) == whole


@pytest.mark.parametrize("damage", [cut, flip_middle, Path.unlink])
@pytest.mark.parametrize(
    "name", ["metadata/blocks.parquet", "metadata/generations/0002.blocks.parquet"]
)
def test_a_table_of_blocks_is_made_again(
    grown: Path, name: str, damage: Callable[[Path], object]
) -> None:
    folder = grown / "out"
    whole = files_in(folder)
    damage(folder / name)
    (folder / "train/train_0000.npy").unlink()
    assert any(name in problem for problem in fineshards.verify(folder).problems)
    done = fineshards.repair(folder)
    assert (done.repaired, done.left) == (["train/train_0000.npy", name], [])
    assert files_in(folder) == whole
    assert fineshards.verify(folder).problems == []
