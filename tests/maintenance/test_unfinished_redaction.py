"""Redactions and repairs that are killed or overtake others: what goes on, and what is refused."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from support.growing import append, made_up_rows, unfinished_append, write_rows
from support.kills import kill
from support.oracle import EOT, files_in
from support.process_tree import start, wait_until
from support.redacted import kill_redactions, secret_tokens

import fineshards
from fineshards import TokenDataset
from fineshards.cli.cli import main
from fineshards.errors import OutputError
from fineshards.exports.export_job import finish, prepare, write_part
from fineshards.exports.export_options import ExportOptions
from fineshards.job_status.status import StatusReader
from fineshards.maintenance.redact import redact
from fineshards.maintenance.repair import repair
from fineshards.shards.job.manifest_file import EXPORT_NAME
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.growing


def kill_redaction(dataset: Path, operation: int) -> None:
    """Kills a redaction of three documents before it replaces file number `operation`."""
    kill(f"replace:{operation}", "redact", dataset, "--documents", 3, 17, 40)


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
        (["inspect"], "a redaction of 3 documents of"),
        (["inspect", "--find", "--id=secret"], "a redaction of 3 documents of"),
        (["explain", "--document=3", "--sequence_length=64"], "a redaction of 3 documents of"),
        (["stats"], "a redaction of 3 documents of"),
        (["publish"], "a redaction of 3 documents of"),
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
    job, _ = prepare(ExportOptions(dataset, folder, "raw"))
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


@pytest.mark.kills
def test_a_repair_that_is_killed_leaves_no_token_of_a_redacted_document(
    dataset: Path, tmp_path: Path
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    environment = os.environ | {"TMPDIR": str(place)}
    redact(str(dataset), ids=["secret"])
    whole, tokens = files_in(dataset), secret_tokens()
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
    assert kill_redactions(grown / "out", tmp_path, 1) > 8
    assert fineshards.verify(tmp_path / "after").ok
