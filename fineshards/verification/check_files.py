"""Files against what lists them: the manifest, `SHA256SUMS` and `export.json`; as part of verify.

What is in a file with the manifest's checksum is what the build wrote, unless someone changed the
manifest with it. The other checks are of that, and of the build itself.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

from fineshards.cores import usable_cores
from fineshards.errors import OutputError
from fineshards.exports.record import Export, FileRecord
from fineshards.publishing import croissant, dataset_card, sums
from fineshards.publishing.sums import CARD_NAME, CROISSANT_NAME, PUBLISHED, SUMS_NAME
from fineshards.shards.checkpoints import FOLDER as CHECKPOINTS
from fineshards.shards.dataset_files import expected_files
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest import Manifest, readable_manifest
from fineshards.shards.job.manifest_file import EXPORT_NAME, MANIFEST_NAME
from fineshards.shards.job.records import GENERATIONS_FOLDER
from fineshards.shards.layout import CURATED_FOLDERS, MASKS_FOLDER, REJECTED_FOLDER, SPLITS
from fineshards.storage.base import READ_AHEAD, TEMPORARY, Storage
from fineshards.storage.checksums import checksum_to_base64, crc32c
from fineshards.wording import counted

_FOLDERS = (*SPLITS, "metadata")
# Folders in `metadata/`.
_INNER = ("metadata/documents", MASKS_FOLDER, REJECTED_FOLDER, *CURATED_FOLDERS, GENERATIONS_FOLDER)
# Bytes in memory at once, per file; a multiple of a token's.
_READ_BYTES = 4 << 20


def differences(
    actual: Mapping[str, int], expected: Mapping[str, int], where: str = ""
) -> Iterator[str]:
    """A sentence for each number that is not that of the manifest.

    actual, expected: numbers by what is counted, a noun in the plural; 0 where there is none.
    where: the file that the sentences begin with.
    """
    begin = f"{where}: " if where else ""
    for what in {**expected, **actual}:
        ours, theirs = actual.get(what, 0), expected.get(what, 0)
        if ours != theirs:
            yield f"{begin}the number of {what} is {ours:,}; the manifest says {theirs:,}"


def _ignore(content: bytes) -> None:
    pass


def file_problem(
    storage: Storage,
    name: str,
    size: int,
    checksum: str,
    see: Callable[[bytes], object] = _ignore,
    says: str = "the manifest says",
) -> str:
    """Reads a file once; returns what is wrong with it, or "" if it has the size and the CRC-32C.

    see: called with the content, some megabytes at a time.
    """
    bytes_found = checksum_found = 0
    try:
        with storage.open(name, READ_AHEAD) as opened:
            while content := opened.read(_READ_BYTES):
                bytes_found += len(content)
                checksum_found = crc32c(content, checksum_found)
                see(content)
    except OutputError as error:
        return str(error)
    if bytes_found != size:
        return f"{name} has {counted(bytes_found, 'byte')}; {says} {size:,}"
    if (text := checksum_to_base64(checksum_found)) != checksum:
        return f"{name} has crc32c {text}; {says} {checksum}"
    return ""


def check_names(
    storage: Storage, manifest: Manifest, following: Job | None
) -> tuple[set[str], list[str]]:
    """The files of a dataset that are there; and a sentence for each that is missing, or foreign.

    manifest: of the latest generation. following: the job that is to make the next one, whose files
    are checked when it is finished.
    """
    files = {entry.name for folder in _FOLDERS for entry in storage.entries(folder)}
    no_files = {name: kind for folder in _FOLDERS for name, kind in storage.others(folder)}
    expected = {MANIFEST_NAME, *(name for name, _, _ in expected_files(manifest))}
    problems = [
        f"{name} is {no_files[name]}, not a file" if name in no_files else f"{name} is missing"
        for name in sorted(expected - files)
    ]
    foreign = files - expected - {*PUBLISHED}
    if following is not None:
        made = (*(f"{split}/{split}_" for split in SPLITS), *(f"{name}/" for name in _INNER[:-1]))
        made += (f"{GENERATIONS_FOLDER}/{following.generation:04d}.",)
        foreign = {name for name in foreign if not name.startswith(made)}
    for name, kind in no_files.items():
        if name not in expected and (name not in _INNER or kind != "a folder"):
            foreign.add(f"{name}/" if kind == "a folder" else name)
    at_the_top = {*(f"{name}/" for name in (*_FOLDERS, CHECKPOINTS)), CARD_NAME, *PUBLISHED}
    # What begins with a dot is a tool's own, such as .gitattributes of a repository.
    foreign |= {name for name in storage.names("") if name not in at_the_top and name[0] != "."}
    # A job that was killed just after it wrote its manifest leaves checkpoints and unfinished
    # files behind; a job with --keep_checkpoints keeps them. Those of other jobs do not belong.
    if left := set(storage.names(f"{CHECKPOINTS}/")) - {f"{TEMPORARY}/"}:
        job = following or manifest.job
        jobs = (job.at(number) for number in range(1, job.generation + 1))
        foreign |= left - {f"{CHECKPOINTS}/{own.fingerprint()}/" for own in jobs}
    warning = "; readers that list shards by prefix would load it"
    problems += [
        f"{name} does not belong to the dataset{warning * name.startswith(SPLITS)}"
        for name in sorted(foreign)
    ]
    return files & expected, problems


def check_manifest(manifest: Manifest, stored: bytes) -> Iterator[str]:
    """The manifest is exactly what its content is written as, so no bit of it has changed."""
    if stored != manifest.to_bytes():
        yield f"{MANIFEST_NAME} is not written as fineshards writes it; someone changed it"
    for problem in manifest.contradictions():
        yield f"{MANIFEST_NAME}: {problem}"


def check_metadata(storage: Storage, manifest: Manifest, there: set[str]) -> Iterator[str]:
    """The files in `metadata/`, but those of shards, are those of the manifest.

    there: the files that are there.
    """
    of_shards = {name for shard in manifest.shards for name, _, _ in shard.files()}
    files = [file for file in expected_files(manifest) if file[0] in there - of_shards]
    with ThreadPoolExecutor(usable_cores()) as pool:
        yield from filter(None, pool.map(lambda file: file_problem(storage, *file), files))


def check_published(storage: Storage, manifest: Manifest, hashes: bool) -> Iterator[str]:
    """What is published is as it was written, of this dataset; nothing, if nothing is published.

    hashes: whether to read every file of the dataset, and compare its SHA-256 with that in
    `SHA256SUMS`.
    """
    stored = {name: storage.read_if_there(name) for name in PUBLISHED}
    there = {name: content for name, content in stored.items() if content is not None}
    card, listed = storage.read_if_there(CARD_NAME), dict[str, str]()
    problem = ""
    if missing := [name for name in PUBLISHED if name not in there]:
        if there or (card is not None and dataset_card.is_unchanged(card)):
            problem = f"{missing[-1]} is missing, and other published files are there"
    else:
        try:
            _, digest = croissant.read(there[CROISSANT_NAME])
        except OutputError as error:
            yield str(error)
            return
        if sha256(there[SUMS_NAME]).hexdigest() != digest:
            problem = f"{SUMS_NAME} is another one than {CROISSANT_NAME} describes"
        else:
            listed = sums.parse(there[SUMS_NAME])
            own = sha256(manifest.to_bytes()).hexdigest()
            if listed[MANIFEST_NAME] != own:
                problem = f"{SUMS_NAME} is of another state of the dataset, which has changed since"
            elif card is None and CARD_NAME in listed:
                problem = f"{CARD_NAME} is missing, and {SUMS_NAME} lists it"
            elif card is not None and sha256(card).hexdigest() != listed.get(CARD_NAME, ""):
                problem = f"{CARD_NAME} has changed since" if CARD_NAME in listed else ""
    if problem:
        yield f"{problem}. Run fineshards publish again."
    elif listed and hashes:
        now = sums.hash_files(storage, manifest)
        for name in sorted(now.keys() | listed.keys() - {CARD_NAME}):
            if now.get(name) != listed.get(name):
                yield f"{name} has SHA-256 {now.get(name)}; {SUMS_NAME} says {listed.get(name)}"


def check_export(storage: Storage, export: Export, dataset: Storage | None) -> Iterator[str]:
    """A sentence per file of an export that is missing, damaged or foreign.

    dataset: also one if the export is not of it, or if that was redacted since.
    """
    expected = {file.name for file in export.files} | {EXPORT_NAME}
    for name in sorted({entry.name for entry in storage.entries("")} - expected):
        yield (
            f"{name} is not a file of the export, and readers take every file of a folder. Move it "
            "away."
        )

    def problem(file: FileRecord) -> str:
        wrong = f"{file.name} is missing"
        if storage.size(file.name) is not None:
            says = f"{EXPORT_NAME} says"
            wrong = file_problem(storage, file.name, file.bytes, file.crc32c, says=says)
        return wrong and f"{wrong.rstrip('.')}. Delete it, and run the same export again."

    with ThreadPoolExecutor(usable_cores()) as pool:
        yield from filter(None, pool.map(problem, export.files))
    if dataset is not None:
        yield from _check_origin(export, dataset)


def _check_origin(export: Export, dataset: Storage) -> Iterator[str]:
    """One sentence if an export is not of a dataset, or if that was redacted since."""
    fingerprint, generation = map(export.dataset.get, ("fingerprint", "generation"))
    try:
        latest = readable_manifest(dataset)
    except OutputError as error:
        yield str(error)
        return
    exists = type(generation) is int and 1 <= generation <= latest.generation
    if not exists or Manifest.load_finished(dataset, generation).fingerprint != fingerprint:
        yield (
            f"the export is not of {dataset.root}: it is of generation {generation} of the dataset "
            f"with the fingerprint {fingerprint}. Name that dataset."
        )
    elif redacted := sum(since.redacted for since in latest.generations[generation:]):
        yield (
            f"{counted(redacted, 'document')} of {dataset.root} were redacted since generation "
            f"{generation} was exported, and these files may still have them. Delete them, "
            "and export the dataset again."
        )
