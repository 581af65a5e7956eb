"""The job record: the settings and source files of a dataset, and its fingerprint.

`metadata/job.json` is written at launch. If the same command runs again, the job continues. Another
command on the same output is refused, with the differences named. Workers and the commands for
finished datasets read the list of source files from it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from posixpath import basename
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from msgspec.structs import force_setattr, replace

from fineshards.errors import OutputError, clipped, contrasted, contrasted_texts
from fineshards.shards.counts import FileReport
from fineshards.shards.job.records import (
    GENERATIONS_FOLDER,
    Generation,
    MetadataFile,
    ShardRecord,
    SourceFile,
    below_roots,
    block_tables,
    borders,
    checked,
    copy_name,
    lists_of_files,
)
from fineshards.shards.job.settings import Settings
from fineshards.shards.layout import CURATED_FOLDERS, REJECTED_FOLDER, Layout
from fineshards.shards.record import FORMAT_VERSION, Count, Record, RecordFile, sha256_of
from fineshards.storage.base import Storage, shortened

if TYPE_CHECKING:
    from fineshards.shards.tables.documents import DocumentPiece

JOB_NAME = "metadata/job.json"
# Tokens in memory at once: as many as are best written at once.
_CHUNK_TOKENS = 1 << 18


def of_generation(number: int) -> str:
    """The suffix of origin names that a later generation added."""
    return f" of generation {number}"


def job_name(generation: int) -> str:
    """The file of the record of the job that makes a generation."""
    return JOB_NAME if generation == 1 else f"{GENERATIONS_FOLDER}/{generation:04d}.job.json"


class Redaction(Record, frozen=True):
    """The documents whose tokens a generation overwrites by EOT, in place.

    Nothing moves: a shard keeps its length, so offsets, sample numbers and loader states stay
    valid. Document tables mark the documents, and the job record of the generation lists them.

    documents: (position of the file in the input, row) of each, ascending. ranges: their tokens,
    as (split, begin, end) within the split.
    """

    documents: tuple[tuple[Count, Count], ...]
    ranges: tuple[tuple[str, Count, Count], ...]

    @classmethod
    def of(
        cls,
        pieces: Sequence[tuple[ShardRecord, DocumentPiece]],
        sources: Iterable[SourceFile],
        layout: Layout,
    ) -> Redaction:
        """The redaction of documents, from all their pieces in order. sources: of the dataset."""
        files = {file.name: file.index for file in sources}
        unknown = {piece.file for _, piece in pieces} - files.keys()
        if unknown:
            raise OutputError(
                f"the tables of documents name the file {shortened(min(unknown))}, which is not a "
                "file of the manifest. Someone has changed the dataset. Copy it again."
            )
        return cls(
            tuple(sorted({(files[piece.file], piece.row) for _, piece in pieces})),
            tuple(sorted(ranges_of(pieces, layout))),
        )

    def sha256(self) -> str:
        """SHA-256, as hex, of the list of documents."""
        return sha256_of(self.documents)


class Job(RecordFile, frozen=True, tag_field="format", tag=f"fineshards job {FORMAT_VERSION}"):
    """A job: its settings and its source files in order.

    origin: which dataset the input is, and its commit; nothing of files. It decides no byte.
    generations: those of the dataset up to this job's, which is the last; one with all files if
    there are none. redaction: the documents that this generation redacts, if it does.
    """

    IF_DAMAGED = (
        "Put it back with fineshards repair, if what it began is finished. If not, run that "
        "command again, or with --overwrite to discard its work."
    )
    IF_OTHER_VERSION = "Use the version that started the job, or start again with --overwrite."

    settings: Settings
    files: tuple[SourceFile, ...]
    origin: dict[str, str]
    generations: tuple[Generation, ...] = ()
    redaction: Redaction | None = None

    def __post_init__(self) -> None:
        if not self.generations:
            force_setattr(self, "generations", (Generation(len(self.files)),))
        checked(self.generations, self.files)

    @property
    def generation(self) -> int:
        """The number of the generation that this job makes, from 1."""
        return len(self.generations)

    @property
    def record_name(self) -> str:
        """The file of this job's record."""
        return job_name(self.generation)

    @property
    def new_files(self) -> tuple[SourceFile, ...]:
        """The source files that this job reads."""
        return self.files[len(self.files) - self.generations[-1].files :]

    @property
    def left_out(self) -> tuple[SourceFile, ...]:
        """The files that all generations left out, because they cannot be read."""
        return tuple(of.file for generation in self.generations for of in generation.left_out)

    def at(self, generation: int) -> Job:
        """The job of an earlier generation."""
        generations = self.generations[:generation]
        later = tuple(map(of_generation, range(generation + 1, self.generation + 1)))
        origin = {name: value for name, value in self.origin.items() if not name.endswith(later)}
        files = self.files[: borders(generations)[-1]]
        return Job(self.settings, files, origin, generations)

    def fingerprint(self, redactions: bool = True) -> str:
        """SHA-256, as hex, of the settings and of the source files' names, sizes and identities.

        So it identifies a job, wherever its input is by now. Files that were left out count too.

        redactions: whether to tell a dataset from itself with documents redacted, which has the
        same documents in the same places.
        """
        deciding: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "settings": self.settings,
            "files": [*map(_deciding, self.files)],
        }
        if self.left_out:
            deciding["left_out"] = [*map(_deciding, self.left_out)]
        grown = sorted({*borders(self.generations)})
        if self.settings.shuffle is not None and len(grown) > 1:
            deciding["borders"] = grown  # each is shuffled within itself
        redacted = [of.redaction_sha256 for of in self.generations if of.redacted]
        if redacted and redactions:
            deciding["redactions"] = redacted
        return sha256_of(deciding)

    def as_begun(self, begun: Job) -> Job:
        """This job with the identities of files of an earlier launch, of the same name and size.

        Another version is trusted then, which is for the caller to allow. The limit of files that
        may be left out, which decides nothing any more, is that of the earlier launch.
        """
        *before, ours = self.generations
        theirs = begun.generations[-1]
        if len(self.files) != len(begun.files) or len(ours.left_out) != len(theirs.left_out):
            return self
        files = tuple(map(_as_begun, self.files, begun.files))
        pairs = zip(ours.left_out, theirs.left_out, strict=True)
        # Of a file that is not below the root the folder in its name depends on where that is.
        out = [replace(was, file=_as_begun(now.file, was.file, basename)) for now, was in pairs]
        ours = replace(ours, max_bad_files=theirs.max_bad_files, left_out=(*out,))
        return replace(self, files=files, generations=(*before, ours))

    def differences(self, other: Job) -> list[str]:
        """How another job differs from this one, for an error message; empty if it does not."""
        differences = self.settings.differences(other.settings)
        if len(self.files) != len(other.files):
            counts = f"was {len(self.files)}, now {len(other.files)}"
            differences.append(f"number of input files: {counts}")
        if len(self.left_out) != len(other.left_out):
            counts = f"was {len(self.left_out)}, now {len(other.left_out)}"
            differences.append(f"number of files left out by --max_bad_files: {counts}")
        pairs = [*zip(self.files, other.files), *zip(self.left_out, other.left_out)]  # noqa: B905
        first = next(filter(None, (_difference(old, new) for old, new in pairs)), None)
        return differences if first is None else [*differences, first]

    def to_bytes(self) -> bytes:
        """The content of the record."""
        files = tuple(file.recorded() for file in self.files)
        return RecordFile.to_bytes(replace(self, files=files))

    @classmethod
    def load(cls, storage: Storage, generation: int = 1) -> Job | None:
        """The job of a generation, or None; raises OutputError if its record is unreadable."""
        name = job_name(generation)
        stored = storage.read_if_there(name)
        return None if stored is None else cls.parse(stored, storage.path(name))

    @classmethod
    def parse(cls, stored: bytes, path: str) -> Job:
        """The job of a record; raises OutputError, with the path, if it is unreadable."""
        job = super().parse(stored, path)
        return replace(job, files=below_roots(job.generations, job.files))


def ranges_of(
    pieces: Iterable[tuple[ShardRecord, DocumentPiece]], layout: Layout
) -> list[tuple[str, int, int]]:
    """The tokens of documents as (split, begin, end) within the split, from all their pieces.

    One range per document, however many shards it is in, unless the first shards are the test
    split: then a document may be in both.
    """
    ranges: dict[tuple[int, str], tuple[str, int, int]] = {}
    for shard, piece in pieces:
        at = layout.begin(shard.key) + piece.offset
        document = (piece.document, shard.split)
        _, begin, _ = ranges.get(document, ("", at, at))
        ranges[document] = shard.split, begin, at + piece.length
    return list(ranges.values())


def overwritten(
    source: BinaryIO,
    ranges: Sequence[tuple[int, int]],
    eot: int,
    dtype: np.dtype[np.unsignedinteger],
) -> Iterator[bytes]:
    """The bytes of a shard's tokens with some of them overwritten, some at a time.

    source: a shard after its header. ranges: ascending `[begin, end)` in tokens.
    """
    position = 0
    while content := source.read(_CHUNK_TOKENS * dtype.itemsize):
        tokens = np.frombuffer(content, dtype).copy()
        for begin, end in ranges:
            tokens[max(begin - position, 0) : max(end - position, 0)] = eot
        yield tokens.tobytes()
        position += len(tokens)


def load_redaction(storage: Storage, number: int, generation: Generation) -> Redaction:
    """What a generation redacted, from its job record; raises OutputError if that is damaged."""
    job = Job.load(storage, number)
    redaction = None if job is None else job.redaction
    if redaction is None or redaction.sha256() != generation.redaction_sha256:
        raise OutputError(
            f"{storage.path(job_name(number))} is missing or damaged, so nothing says which "
            "documents were redacted. Make it again with fineshards repair."
        )
    return redaction


def of_earlier_jobs(job: Job, metadata: Iterable[MetadataFile]) -> list[MetadataFile]:
    """Those of the generation before `job` that only the job of their generation makes."""
    names = (*CURATED_FOLDERS, *block_tables(job.generations[:-1]).values())
    return [file for file in metadata if file.name.startswith(names)]


def metadata_files(
    storage: Storage, job: Job, reports: Iterable[FileReport]
) -> Iterator[MetadataFile]:
    """The record of each file in `metadata/` that exists before the manifest does.

    Writes the list of the files that the job left out.

    reports: of the source files. Raises OutputError for a tokenizer, template or list of files that
    is not the job's, and for lists of rejected rows that have not as many as the reports.
    """
    from fineshards.storage.checksums import checksum_to_base64, crc32c  # loading lacks it

    settings, hashes = job.settings, [job.settings.tokenizer.vocabulary_sha256]
    if settings.chat is not None:
        hashes.append(settings.chat.template_sha256)
    expected = dict(zip(settings.stored_files, hashes, strict=True))
    for name, content in lists_of_files(job.generations).items():
        expected[name] = hashlib.sha256(content).hexdigest()
        if storage.size(name) is None:
            storage.write(name, content)
    rejected = sorted({entry.name for entry in storage.entries(REJECTED_FOLDER)} - expected.keys())
    records = [job_name(number) for number in range(1, job.generation + 1)]
    manifests = [copy_name(number) for number in range(1, job.generation)]
    listed = Counter[str]()
    for name in (*records, *expected, *rejected, *manifests):
        content = storage.read(name)
        actual = hashlib.sha256(content).hexdigest()
        if actual != expected.get(name, actual):
            raise OutputError(
                f"{storage.path(name)} has sha256 {actual}, expected that of the job, "
                f"{expected[name]}. Someone changed the folder while the job ran; start again with "
                "--overwrite."
            )
        if name in rejected:  # one line per row; the name says of which source file
            listed[name.rpartition("-")[0]] += content.count(b"\n")
        yield MetadataFile(name, len(content), checksum_to_base64(crc32c(content)))
    counted = {f"{REJECTED_FOLDER}/{report.file:05d}": report.counts.listed for report in reports}
    for name in sorted({*listed, *counted}):
        if listed[name] != counted.get(name, 0):
            raise OutputError(
                f"{storage.path(name)}-*.jsonl list {listed[name]:,} rejected rows, expected "
                f"{counted.get(name, 0):,}. Someone changed the folder while the job ran; start "
                "again with --overwrite."
            )


def _deciding(file: SourceFile) -> SourceFile:
    """What of a file's record is part of the fingerprint."""
    return replace(file.recorded(), trusted=None)


def _as_begun(now: SourceFile, was: SourceFile, compared: Callable[[str], str] = str) -> SourceFile:
    """A file with the identity that it had, and its version as trusted, if that is another."""
    if (compared(now.name), now.sizes) != (compared(was.name), was.sizes):
        return now
    trusted = was.trusted if now.version == was.version else now.version
    return replace(now, name=was.name, identity=was.identity, trusted=trusted)


def _difference(old: SourceFile, new: SourceFile) -> str | None:
    path = clipped(new.path)
    if old.name != new.name:
        return f"input file {old.index}: {contrasted_texts(old.name, new.name)}"
    if old.test != new.test:
        was, now = ("test" if file.test else "train" for file in (old, new))
        return f"--test_input: {path} was {was}, now {now}"
    if old.extraction != new.extraction:
        return f"extraction of {path}: {contrasted(old.extraction, new.extraction)}"
    if old.stop_row != new.stop_row:
        rows = old.stop_row, new.stop_row
        was, now = ("with its last row" if row is None else f"before row {row}" for row in rows)
        return f"--limit: {path} ended {was}, now {now}"
    if _deciding(old) != _deciding(new):
        return f"{path} changed: it had {old.described()}, now {new.described()}"
    return None
