"""Redactions: documents are overwritten in place, everything else stays, and verify proves it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from support.faulty_proxy import Proxy
from support.growing import (
    append,
    build,
    made_up_rows,
    unfinished_append,
    write_rows,
)
from support.oracle import ENCODING, EOT, files_in
from support.process_tree import start, wait_until

import fineshards
from fineshards import BatchLoader, Packing, TokenDataset
from fineshards.cli.cli import main
from fineshards.errors import OutputError, UsageError
from fineshards.exports.export_job import finish, prepare, write_part
from fineshards.exports.export_options import ExportOptions
from fineshards.job_status.status import StatusReader
from fineshards.maintenance.rebuild import repair
from fineshards.maintenance.redact import redact
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.manifest import EXPORT_NAME
from fineshards.shards.tables.documents import DocumentTable
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.growing

SECRET = "the number of the safe is four hundred and twelve"
KINDS = {
    "document": ["--test_fraction=0.3"],
    "shards": ["--test_shards=2"],
    "shuffled": ["--test_fraction=0.3", "--shuffle_seed=5"],
}


@pytest.fixture(scope="module", params=KINDS)
def grown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two generations, in `out/`, and its sources."""
    folder = tmp_path_factory.mktemp("redact")
    rows = made_up_rows(11, 80)
    rows[7]["text"] = f"{SECRET}. " * 150
    rows[7]["id"] = "secret"
    files = [write_rows(folder / f"{n}.parquet", rows[n * 40 : n * 40 + 40]) for n in range(2)]
    flags = ["--shard_tokens=600", "--block_bytes=1", *KINDS[request.param]]
    build(folder / "out", files[0], *flags, "--keep_checkpoints")
    append(folder / "out", files[1], "--keep_checkpoints")
    return folder


@pytest.fixture
def dataset(grown: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(grown / "out", tmp_path / "out"))


def documents_of(folder: Path, generation: int | None = None) -> list[tuple[str, int, list[int]]]:
    """(file, row, tokens) of each document, by number."""
    opened = Dataset.open(open_storage(str(folder)), generation)
    count = opened.manifest.totals()["documents"]
    found = [opened.document(number) for number in range(count)]
    return [(each.file, each.row, each.tokens.tolist()) for each in found]


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
        tokens = fineshards_tokens(SECRET)
        return [
            name
            for name, content in files_in(dataset).items()
            if SECRET.encode() in content or tokens in content
        ]

    assert any(name.startswith("checkpoints/") for name in holders())
    redact(str(dataset), ids=["secret"])
    assert holders() == []


def fineshards_tokens(text: str) -> bytes:
    """A text's tokens as they are in a shard; of a text within a longer one."""
    return np.array(ENCODING.encode_ordinary(f" {text}")[1:-1], "<u4").tobytes()


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


def test_a_training_goes_on_and_can_leave_them_out(dataset: Path) -> None:
    before = TokenDataset(dataset, sequence_length=16)
    loader = BatchLoader(before, batch_size=4, seed=2)
    next(loader)
    state = loader.state_dict()
    whole = before.gather(np.arange(len(before)))
    before.close()
    number = next(
        n
        for n, (_, _, tokens) in enumerate(documents_of(dataset))
        if len(tokens) > 100 and _split_of(dataset, n) == "train"
    )
    redact(str(dataset), documents=[number])
    after = TokenDataset(dataset, sequence_length=16, skip="redacted")
    resumed = BatchLoader(after, batch_size=4, seed=2)
    resumed.load_state_dict(state)
    numbers = [drawn.sample for drawn in resumed.samples(1)]
    batch = next(resumed)
    mask = after.loss_mask(np.array(numbers))
    assert np.array_equal(batch[:, 1:][mask], whole[numbers][:, 1:][mask])
    # The mask is exactly the document, in every generation.
    for opened in (after, TokenDataset(dataset, sequence_length=16, generation=2, skip="redacted")):
        out = ~opened.loss_mask(np.arange(len(opened)))
        now = opened.gather(np.arange(len(opened)))[:, 1:]
        changed = now != whole[: len(opened)][:, 1:]
        assert set(now[out].tolist()) == {EOT}
        assert not np.any(changed & ~out)
        assert out.sum() > 16
    by_number = TokenDataset(dataset, sequence_length=16, skip=[number])
    everything = np.arange(len(after))
    assert np.array_equal(by_number.loss_mask(everything), after.loss_mask(everything))
    assert TokenDataset(dataset, sequence_length=16).loss_mask(everything).all()
    assert after.loss_mask(np.array([], np.int64)).shape == (0, 16)
    with pytest.raises(UsageError, match="no document 99999"):
        TokenDataset(dataset, sequence_length=16, skip=[99999]).loss_mask(everything)
    with pytest.raises(UsageError, match="skip must be"):
        TokenDataset(dataset, sequence_length=16, skip="all")  # type: ignore[arg-type]


def _split_of(folder: Path, number: int) -> str:
    opened = Dataset.open(open_storage(str(folder)))
    splits = {split for split, *_ in opened.ranges(number)}
    return splits.pop() if len(splits) == 1 else "both"


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
        (["nobody"], [], r"--ids: 1 id of no document, such as nobody\. Nothing was changed\."),
        (["secret", "a", "b"], [], r"--ids: 2 ids of no document, such as a\."),
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
    with pytest.raises(OutputError, match="built by an earlier version of fineshards"):
        redact(str(ROOT / "tests/fixtures/version-2/finished"), documents=[1])
    more = write_rows(tmp_path / "more.parquet", made_up_rows(13, 20))
    unfinished_append(dataset, more)
    files = files_in(dataset)
    with pytest.raises(OutputError, match=r"another change of .* is not finished"):
        redact(str(dataset), documents=[1])
    assert files_in(dataset) == files


def kill_redaction(dataset: Path, operation: int) -> None:
    """Kills a redaction of three documents before it replaces file number `operation`."""
    code = (
        "from support import crash_driver as c; c.OPERATIONS = ('replace',);"
        f"from fineshards.maintenance.redact import redact; c.kill_before_operation({operation});"
        f"redact({str(dataset)!r}, documents=[3, 17, 40])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        check=False,
    )
    assert done.returncode == -9


def test_an_unfinished_redaction_is_in_the_way_of_everything_else(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill_redaction(dataset, 5)
    before = files_in(dataset)
    more = write_rows(dataset.parent / "more.parquet", made_up_rows(12, 20))
    for arguments, words in (
        (["append", "--input", str(more)], "a redaction of 3 documents of"),
        (["append", "--input", str(more), "--overwrite"], "a redaction of 3 documents of"),
        (["repair"], "a redaction of 3 documents of"),
        (["report", "--output", str(dataset.parent / "report.html")], "a redaction of 3"),
        (
            ["export", "--output", str(dataset.parent / "exported"), "--to=raw"],
            "a redaction of 3 documents of",
        ),
        (["verify"], "a redaction of 3 documents of"),
        (["redact", "--documents", "5"], "another change of"),
    ):
        assert main([arguments[0], str(dataset), *arguments[1:]]) in (1, 2)
        said = capsys.readouterr()
        assert words in said.out + said.err
        assert files_in(dataset) == before
    assert main(["status", str(dataset)]) == 0
    assert "finished" in capsys.readouterr().out
    redact(str(dataset), documents=[3, 17, 40])
    assert fineshards.verify(dataset, sample=100).ok
    assert StatusReader(open_storage(str(dataset))).read(added=True) == fineshards.status(dataset)


@pytest.mark.parametrize("operation", [5, None], ids=["unfinished", "finished"])
def test_an_export_that_a_redaction_overtakes_is_not_finished(
    dataset: Path, operation: int | None
) -> None:
    folder = dataset.parent / "exported"
    job, _ = prepare(str(dataset), str(folder), ExportOptions("raw"))
    records = [write_part(job, part) for part in job.parts]
    if operation is None:
        redact(str(dataset), documents=[3, 17, 40])
        words = "Documents were redacted since"
    else:
        kill_redaction(dataset, operation)
        words = "a redaction of 3 documents of .* is not finished"
    with pytest.raises(OutputError, match=words):
        finish(job, records)
    assert not (folder / EXPORT_NAME).exists()


def test_a_training_goes_on_while_a_redaction_is_unfinished(dataset: Path) -> None:
    before = TokenDataset(dataset, sequence_length=64).gather(np.arange(20))
    kill_redaction(dataset, 5)
    opened = TokenDataset(dataset, sequence_length=64)
    found = opened.gather(np.arange(20))
    assert np.all((found == before) | (found == EOT))
    assert len(opened.documents(0)) > 0


def test_a_repair_leaves_an_unfinished_append_alone(dataset: Path) -> None:
    more = write_rows(dataset.parent / "more.parquet", made_up_rows(13, 20))
    unfinished_append(dataset, more)
    before = files_in(dataset)
    assert repair(str(dataset)).repaired == []
    assert files_in(dataset) == before
    full = min((dataset / "train").iterdir())
    full.unlink()
    assert repair(str(dataset)).repaired == [f"train/{full.name}"]
    assert files_in(dataset) == before
    append(dataset, more)
    assert fineshards.verify(dataset, sample=100).ok


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


@pytest.mark.kills
def test_a_repair_that_is_killed_leaves_no_token_of_a_redacted_document(
    dataset: Path, tmp_path: Path
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    environment = os.environ | {"TMPDIR": str(place)}
    redact(str(dataset), ids=["secret"])
    whole, tokens = files_in(dataset), fineshards_tokens(SECRET)
    for path in [*(dataset / "train").iterdir(), *(dataset / "test").iterdir()]:
        path.unlink()
    scratch, seen, wanted = dataset / "checkpoints/unfinished", 0, 1
    while True:
        job = start("repair", dataset, env=environment)

        def there() -> list[Path]:
            return [Path(at, name) for at, _, names in os.walk(scratch) for name in names]

        wait_until(lambda wanted=wanted: len(there()) >= wanted, job)  # type: ignore[misc]
        job.kill()
        job.communicate()
        # The tokenizer's library reads a vocabulary from a file in TMPDIR.
        for path in [*there(), *(path for path in place.rglob("*") if path.is_file())]:
            seen += path.suffix == ".tokens"
            assert tokens not in path.read_bytes(), path
        wanted *= 3
        if job.returncode == 0:
            break
        assert job.returncode == -signal.SIGKILL
    assert seen
    assert main(["repair", str(dataset)]) == 0
    assert not scratch.exists()
    assert files_in(dataset) == whole


@pytest.mark.kills
def test_a_redaction_killed_before_any_file_operation(grown: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "support.redact_crash_driver", grown / "out", tmp_path],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    crashes = json.loads(done.stdout)
    assert len(crashes) > 10
    assert sum(crash["unfinished"] for crash in crashes) > 8
    for crash in crashes:
        assert crash["read"] == 0, crash
        assert crash["refused"] == 0, (crash, done.stderr)
        assert crash["resumed"] == 0, crash
        assert crash["same"], crash


@pytest.mark.cloud
def test_a_dataset_on_gs_is_redacted(
    cloud: Proxy, grown: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = Path(shutil.copytree(grown / "out", tmp_path / "out"))
    shutil.rmtree(local / "checkpoints")
    storage = open_storage("gs://data/out")
    for name, content in files_in(local).items():
        storage.write(name, content)
    redact(str(local), documents=[3, 40])
    assert main(["redact", "gs://data/out", "--documents", "3", "40"]) == 0
    assert "soft delete" in capsys.readouterr().out
    found = {name.removeprefix("out/"): cloud.content("data", name) for name in cloud.names("data")}
    assert found == files_in(local)
    assert fineshards.verify("gs://data/out").ok


PACKED = ("inputs", "targets", "position_ids", "document_ids", "cu_seqlens", "max_seqlen")


@pytest.mark.parametrize("packing", [Packing(rows=8, shuffle_windows=2), None])
def test_documents_begin_where_they_began_before_a_redaction(
    dataset: Path, packing: Packing | None
) -> None:
    """Also in earlier generations, in the rest of a running epoch, and while it is not finished."""

    def opened(generation: int | None) -> BatchLoader:
        source = TokenDataset(dataset, sequence_length=32, generation=generation, mapped=False)
        return BatchLoader(source, 4, 7, packing=packing, fields=PACKED, epochs=1)

    def documents(loader: BatchLoader) -> list[list[tuple[str, int, int, int, int]]]:
        return [
            [(each.file, each.row, each.begin, each.end, each.position) for each in row]
            for step in (0, 3)
            for _, row in loader.explain(step)
        ]

    before = {generation: list(opened(generation)) for generation in (1, 2)}
    explained = {generation: documents(opened(generation)) for generation in (1, 2)}
    running = opened(2)
    assert equal(next(running), before[2][0], redacted=False)
    state = running.state_dict()
    starts = {n: len(tokens) for n, (_, _, tokens) in enumerate(documents_of(dataset))}
    long = sorted(starts, key=starts.__getitem__)[-3:]
    redact(str(dataset), documents=sorted({*long, long[0] + 1, 5}))
    running.batches.sources[0].close()  # its shards are opened again
    for batch, expected in zip(running, before[2][1:], strict=True):
        assert equal(batch, expected, redacted=True)
    resumed = opened(None)
    resumed.load_state_dict(state)
    for batch, expected in zip(resumed, before[2][1:], strict=True):
        assert equal(batch, expected, redacted=True)
    for generation, batches in before.items():
        for batch, expected in zip(opened(generation), batches, strict=True):
            assert equal(batch, expected, redacted=True)
        assert documents(opened(generation)) == explained[generation]
    again = zip(opened(2), before[2], strict=True)
    assert any((batch["inputs"] != expected["inputs"]).any() for batch, expected in again)


def equal(batch: dict[str, np.ndarray], expected: dict[str, np.ndarray], redacted: bool) -> bool:
    """Whether all but the tokens is equal, and tokens that differ are EOT."""
    for name, values in batch.items():
        differ = np.asarray(values != expected[name])
        if name in ("inputs", "targets"):
            assert differ.any() <= redacted
            assert set(values[differ].tolist()) <= {EOT}
        elif np.any(differ):
            return False
    return True


@pytest.mark.cloud
def test_documents_without_text_cost_no_requests_about_redactions(
    cloud: Proxy, tmp_path: Path
) -> None:
    """Their EOTs follow one another as those of a later redaction: one look per opened shard."""
    texts = ["" if n % 8 < 3 else f"document {n} of a few words" for n in range(400)]
    source = write_rows(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    build(tmp_path / "out", source, "--shard_tokens=1000")
    storage = open_storage("gs://data/out")
    for name, content in files_in(tmp_path / "out").items():
        storage.write(name, content)

    def batches(folder: object) -> BatchLoader:
        dataset = TokenDataset(str(folder), sequence_length=32)
        return BatchLoader(dataset, 2, 1, fields=PACKED, shuffle=False, epochs=1, prefetch=0)

    expected, running = list(batches(tmp_path / "out")), batches("gs://data/out")
    before = cloud.count("metadata/")
    for number, batch in enumerate(expected[:-4]):
        assert equal(next(running), batch, redacted=False), number
    shards = len(list((tmp_path / "out/train").iterdir()))
    assert 0 < shards < 6 < len(expected)
    assert cloud.count("metadata/") - before <= 2 * shards + 5
    redact("gs://data/out", documents=[399, 398, 397])
    running.batches.sources[0].close()  # its shards are opened again
    for batch, other in zip(running, expected[-4:], strict=True):
        assert equal(batch, other, redacted=True)
