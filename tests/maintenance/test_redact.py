"""Redactions: documents are overwritten in place, everything else stays, and verify proves it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.growing import append, made_up_rows, unfinished_append, write_rows
from support.oracle import EOT, files_in
from support.redacted import SECRET, documents_of, secret_tokens

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import OutputError, UsageError
from fineshards.maintenance.redact import redact
from fineshards.maintenance.repair import repair
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.layout import SPLITS
from fineshards.shards.tables.documents import DocumentTable
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.growing


def test_documents_are_overwritten_and_nothing_else_changes(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = documents_of(dataset)
    lengths = [len(tokens) for *_, tokens in before]
    # One that straddles shards, one with an id, one of the last document.
    chosen = {int(np.argmax(lengths)), len(before) - 1}
    (dataset.parent / "ids").write_text("secret\n\n")
    given = ["--ids", str(dataset.parent / "ids"), "--documents", *map(str, sorted(chosen))]
    assert main(["redact", str(dataset), *given, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    opened = Dataset.open(open_storage(str(dataset)))
    chosen |= {n for n in range(len(before)) if opened.document(n).id == "secret"}
    assert (done["generation"], done["documents"]) == (3, len(chosen))
    assert done["tokens"] == sum(lengths[number] for number in chosen)
    expected = [
        (file, row, [EOT] * len(tokens) if number in chosen else tokens)
        for number, (file, row, tokens) in enumerate(before)
    ]
    assert documents_of(dataset) == expected
    for generation in (1, 2, 3, None):
        verdict = fineshards.verify(dataset, generation=generation, sample=100)
        assert verdict.problems == []
    assert verdict.sampled == len(before) - len(chosen)
    # The same once more has nothing to do.
    files = files_in(dataset)
    assert main(["redact", str(dataset), *given]) == 0
    assert capsys.readouterr().out.startswith("nothing to do")
    assert files_in(dataset) == files
    assert main(["inspect", str(dataset)]) == 0
    assert f"{len(chosen)} documents redacted" in capsys.readouterr().out


def test_the_text_is_in_no_file(dataset: Path) -> None:
    def holders() -> list[str]:
        tokens = secret_tokens()
        return [
            name
            for name, content in files_in(dataset).items()
            if SECRET.encode() in content or tokens in content
        ]

    assert any(name.startswith("checkpoints/") for name in holders())
    redact(str(dataset), ids=["secret"])
    assert holders() == []


def test_inspect_says_that_a_document_is_redacted(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    redact(str(dataset), ids=["secret"])
    opened = Dataset.open(open_storage(str(dataset)))
    for position, shard in enumerate(opened.manifest.shards):
        for index in np.flatnonzero(opened.table(position).redacted).tolist():
            place = ["--shard", f"{shard.split}/{shard.index}", "--document", str(index)]
            capsys.readouterr()
            assert main(["inspect", str(dataset), *place]) == 0
            assert "redacted in generation 3: its tokens are EOT" in capsys.readouterr().out
            assert main(["inspect", str(dataset), *place, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["redacted"] == 3


def test_a_program_sees_which_documents_are_redacted(dataset: Path) -> None:
    count = len(documents_of(dataset))
    redact(str(dataset), ids=["secret"])
    splits = [fineshards.TokenDataset(dataset, split, sequence_length=8) for split in SPLITS]
    # With --test_shards one document may be in both.
    both = {document.number: document for split in splits for document in split.all_documents()}
    documents = [both[number] for number in range(count)]
    assert {document.id for document in documents if document.redacted} == {"secret"}
    for document in documents:
        assert document.redacted == (
            (document.tokens[1:] == EOT).all() and len(document.tokens) > 1
        )
        assert (document.text == "") >= document.redacted
        if document.id is not None:
            found = fineshards.find(dataset, id=document.id)
            assert [match.redacted for match in found.matches] == [document.redacted]


def test_a_redacted_dataset_grows_and_is_repaired(grown: Path, dataset: Path) -> None:
    redact(str(dataset), documents=[3, 40])
    more = write_rows(dataset.parent / "more.parquet", made_up_rows(12, 20))
    append(dataset, more)
    redact(str(dataset), documents=[5])
    assert [v.problems for v in map(fineshards.verify, [dataset])] == [[]]
    for generation in range(1, 6):
        assert fineshards.verify(dataset, generation=generation).ok
    whole = files_in(dataset)
    lost = [name for name in whole if name.startswith(("test/", "train/", "metadata/documents/"))]
    for name in lost[::4]:
        (dataset / name).unlink()
    assert sorted(repair(str(dataset)).repaired) == sorted(lost[::4])
    assert files_in(dataset) == whole
    (dataset / "metadata/generations/0003.job.json").unlink()
    repair(str(dataset))
    assert files_in(dataset) == whole


def test_verify_accepts_exactly_the_redacted_documents(dataset: Path) -> None:
    redact(str(dataset), documents=[3])
    opened = Dataset.open(open_storage(str(dataset)))
    shard = opened.document(3).shard
    path = dataset / shard.name
    content = bytearray(path.read_bytes())
    tokens = np.frombuffer(content, np.uint32, offset=128)
    # Another token of a document that is not redacted, made an EOT.
    place = int(np.flatnonzero(tokens != EOT)[-1])
    content[128 + 4 * place : 132 + 4 * place] = EOT.to_bytes(4, "little")
    path.write_bytes(content)
    problems = "\n".join(fineshards.verify(dataset).problems)
    assert "crc32c" in problems
    assert "EOT tokens are not where" in problems or "the manifest says" in problems
    shutil.copy(dataset / "metadata/manifest.json", dataset.parent / "manifest.json")
    # A mark in a table that the manifest does not count.
    name = f"metadata/documents/{Path(shard.name).stem}.parquet"
    table = DocumentTable(pq.read_table(dataset / name))
    (dataset / name).write_bytes(table.marked([0], 3))
    assert any(name in problem for problem in fineshards.verify(dataset).problems)


@pytest.mark.parametrize(
    ("ids", "numbers", "message"),
    [
        (["nobody"], [], r"--ids: 1 id that no document has, such as nobody\. Nothing was"),
        (["secret", "a", "b"], [], r"--ids: 2 ids that no document has, such as a\."),
        ([], [10**6], r"--documents 1000000: the dataset has .* numbered from 0\. Nothing"),
        ([], [-1], r"--documents -1: the dataset has"),
    ],
)
def test_documents_that_are_not_there_change_nothing(
    dataset: Path, ids: list[str], numbers: list[int], message: str
) -> None:
    before = files_in(dataset)
    with pytest.raises(UsageError, match=message):
        redact(str(dataset), ids, numbers)
    assert files_in(dataset) == before


def test_what_cannot_be_redacted_is_one_sentence(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_in(dataset)
    for arguments, words in (
        ([], "give --ids, a file of ids, or --documents"),
        (["--ids", str(tmp_path / "none")], "cannot be read"),
        (["--ids", str(tmp_path / "empty")], "has no ids: it must have one per line"),
    ):
        (tmp_path / "empty").write_text("\n")
        assert main(["redact", str(dataset), *arguments]) in (1, 2)
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line
    assert files_in(dataset) == before
    with pytest.raises(OutputError, match="holds no finished dataset"):
        redact(str(tmp_path / "nothing"), documents=[1])
    more = write_rows(tmp_path / "more.parquet", made_up_rows(13, 20))
    unfinished_append(dataset, more)
    files = files_in(dataset)
    with pytest.raises(OutputError, match=r"another change of .* is not finished"):
        redact(str(dataset), documents=[1])
    assert files_in(dataset) == files


def test_a_damaged_shard_is_not_redacted(dataset: Path) -> None:
    shard = dataset / Dataset.open(open_storage(str(dataset))).document(3).shard.name
    content = bytearray(shard.read_bytes())
    content[-2] ^= 1
    shard.write_bytes(content)
    before = files_in(dataset)
    with pytest.raises(OutputError, match="is not what the manifest says, so nothing was redacted"):
        redact(str(dataset), documents=[3])
    assert files_in(dataset) == before
    shard.write_bytes(content[:-1])
    with pytest.raises(OutputError, match="is not what the manifest says, so nothing was redacted"):
        redact(str(dataset), documents=[3])
