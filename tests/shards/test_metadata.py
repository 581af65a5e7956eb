"""The small files in `metadata/`: recorded at Commit, if they are those of the job."""

import json
from pathlib import Path

import pytest
from support.damage import checksum
from support.made_up_job import JOB, RANKS

from fineshards.errors import OutputError
from fineshards.shards.counts import Counts, FileReport
from fineshards.shards.job.job import JOB_NAME, metadata_files
from fineshards.shards.job.records import MetadataFile
from fineshards.shards.job.settings import VOCABULARY_NAME
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage

LISTS = {
    "metadata/rejected/00000-00000.jsonl": ["/in/0"],
    "metadata/rejected/00002-00000.jsonl": ["/in/2", "/in/2"],
}
# File 1 has no blocks, so it has no report.
REPORTS = [FileReport(0, 1, Counts(rejected=1)), FileReport(2, 1, Counts(rejected=2))]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """The folder of a job before its manifest."""
    storage = open_storage(str(tmp_path))
    storage.write(JOB.record_name, JOB.to_bytes())
    storage.write(VOCABULARY_NAME, RANKS)
    for name, paths in LISTS.items():
        storage.write(
            name,
            b"".join(
                json.dumps({"file": path, "row": 1, "place": "", "reason": "bad"}).encode() + b"\n"
                for path in paths
            ),
        )
    return storage


def test_every_file_is_recorded_with_its_size_and_checksum(storage: Storage) -> None:
    names = [JOB_NAME, VOCABULARY_NAME, *LISTS]
    contents = {name: Path(storage.path(name)).read_bytes() for name in names}
    assert list(metadata_files(storage, JOB, REPORTS)) == [
        MetadataFile(name, len(content), checksum(content)) for name, content in contents.items()
    ]


def test_a_file_that_is_not_the_jobs_is_an_error(storage: Storage) -> None:
    storage.write(VOCABULARY_NAME, RANKS + b"\n")
    with pytest.raises(OutputError, match=r"metadata/vocabulary.tiktoken has sha256 "):
        list(metadata_files(storage, JOB, REPORTS))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            next(iter(LISTS)),
            b"",
            r"rejected/00000-\*\.jsonl list 0 rejected rows, expected 1",
        ),
        ("metadata/rejected/00099-0.jsonl", b"1\n", r"00099-\*\.jsonl list 1 .*, expected 0"),
    ],
)
def test_lists_of_other_rejected_rows_are_an_error(
    storage: Storage, name: str, content: bytes, expected: str
) -> None:
    storage.write(name, content)
    with pytest.raises(OutputError, match=expected):
        list(metadata_files(storage, JOB, REPORTS))


def test_a_missing_file_is_an_error(storage: Storage) -> None:
    storage.delete(VOCABULARY_NAME)
    with pytest.raises(OutputError, match=r"vocabulary\.tiktoken cannot be read"):
        list(metadata_files(storage, JOB, REPORTS))
