"""Verify: proof that a dataset is complete, undamaged, and what its manifest says.

None of the job's own bookkeeping is trusted: every file is read once and compared with its size and
checksum in the manifest, and every total is recomputed from the shards and document tables.
Optionally, documents are tokenized again and compared with their sources.
"""

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from fineshards.cores import usable_cores
from fineshards.errors import OutputError, UsageError
from fineshards.exports.record import Export
from fineshards.publishing import sums
from fineshards.publishing.sums import SUMS_NAME
from fineshards.shards.counts import sums_by_stream
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest import Manifest, unfinished_redaction
from fineshards.shards.job.manifest_file import MANIFEST_NAME, unfinished
from fineshards.shards.tables.shared_texts import Comparison, SharedTexts, compare_range
from fineshards.sources.roots import with_sources
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage
from fineshards.verification.check_files import (
    check_export,
    check_manifest,
    check_metadata,
    check_names,
    check_published,
    differences,
)
from fineshards.verification.check_tables import check_curated, check_shard, check_stream
from fineshards.verification.compare_sources import Compared, compare_with_sources
from fineshards.wording import counted
from fineshards.worker import own_process
from fineshards.worker.fresh_interpreter import call_in_fresh_interpreter


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of `verify`.

    Args:
        ok: Whether the dataset has no problem.
        problems: One sentence per problem.
        shards: Shards that the manifest lists.
        tokens: Tokens found in the shards.
        documents: Documents found in the shards.
        sampled: Documents that were compared with their sources.
        judged: Documents that a recipe dropped or cut, and that were judged again.
        files: Files of an export, whose tokens and documents are those that it was written with.
        hashed: Files that were compared with `SHA256SUMS`.

    Example:
        >>> import fineshards
        >>> verdict = fineshards.verify(dataset_folder)
        >>> verdict.shards, verdict.tokens, verdict.documents, verdict.sampled
        (7, 665971, 1063, 0)
    """

    ok: bool
    problems: list[str]
    shards: int
    tokens: int
    documents: int
    sampled: int
    judged: int = 0
    files: int = 0
    hashed: int = 0

    def __bool__(self) -> bool:
        return self.ok


def verify(
    folder: str | os.PathLike[str],
    *,
    sample: float | str = 0.0,
    generation: int | None = None,
    sha256: bool = False,
    dataset: str | os.PathLike[str] | None = None,
    sources: Sequence[str] = (),
) -> Verdict:
    """Checks every file of a finished dataset or export, and returns all problems found.

    Args:
        folder: The folder of the dataset or of the export, local, `gs://` or `s3://`.
        sample: What to tokenize again from its sources and compare: a share of the documents,
            such as "1%", or about a number of them, such as 1000. 100 means all; smaller numbers
            are refused. At least one document, unless it is 0. With a recipe the same share of what
            it dropped is judged again. Default: 0, none.
        generation: The generation to check, from 1, of a dataset that has grown. Default: the
            latest, which includes the others.
        sha256: Whether to read every file once more and compare its SHA-256 with that in
            `SHA256SUMS`, which `publish` writes.
        dataset: Of an export, the folder of the dataset that it was made of: then documents that
            were redacted since are a problem.
        sources: Where the source files are now, for `sample`: each is `OLD=NEW`, and what was in
            the folder OLD is in NEW. Their size is that of then; their content is compared.

    Returns:
        A Verdict. `ok` is True if there are no problems; `problems` has one sentence per problem.

    Raises:
        OutputError: If the folder has no readable manifest to check the dataset against, or if
            there is no such generation.
        UsageError: If sample is neither a share nor a number, or if there are no SHA-256 sums to
            compare with.

    Example:
        >>> import fineshards
        >>> verdict = fineshards.verify(dataset_folder, sample="100%")
        >>> verdict.ok, verdict.problems, verdict.sampled
        (True, [], 1063)
    """
    wanted, storage = _percent(sample, 0), open_storage(folder)
    if sources and not wanted:
        raise UsageError("--sources goes with --sample, which reads the source files.")
    export = Export.load(storage) if storage.size(MANIFEST_NAME) is None else None
    if export is not None:
        if wanted or sha256 or generation is not None:
            raise UsageError(
                f"{storage.root} is an export: --sample, --sha256 and --generation go with "
                "datasets."
            )
        problems = [*check_export(storage, export, open_storage(dataset) if dataset else None)]
        tokens = sum(counts["tokens"] for counts in export.splits.values())
        documents = sum(counts["documents"] or 0 for counts in export.splits.values())
        return Verdict(not problems, problems, 0, tokens, documents, 0, files=len(export.files))
    if dataset is not None:
        raise UsageError(
            f"--dataset goes with the folder of an export, and {storage.root} is not one. Leave it "
            "out."
        )
    if sha256 and generation is not None:
        raise UsageError(f"--sha256: {SUMS_NAME} is of the latest generation. Leave one out.")
    while True:
        latest, following = _state(storage)
        if sha256 and storage.size(SUMS_NAME) is None:
            raise UsageError(
                f"--sha256: {storage.path(SUMS_NAME)} is missing. Write it with fineshards publish."
            )
        verdict = _verify(storage, latest, following, sample, generation, sha256, sources)
        # What an append did meanwhile may look like damage.
        if verdict.ok or _state(storage) == (latest, following):
            return verdict


def _percent(sample: float | str, documents: int) -> float:
    """The percentage of a number of documents that is compared."""
    share = isinstance(sample, str) and sample.endswith("%")
    try:
        number = float(str(sample).removesuffix("%"))
    except ValueError:
        number = -1
    if not 0 <= number < math.inf or (number > 100 if share else 0 < number < 100):
        raise UsageError(
            f"--sample is a share such as 1%, or a number of documents above 100, got {sample!r}."
        )
    return number if share or number <= 100 else min(100.0, 100 * number / max(documents, 1))


def _state(storage: Storage) -> tuple[Manifest, Job | None]:
    """The manifest, and the job of the generation after it, if there is one already."""
    latest = Manifest.load(storage)
    if latest is None:
        raise OutputError(unfinished(storage))
    return latest, Job.load(storage, latest.generation + 1)


def _verify(
    storage: Storage,
    latest: Manifest,
    following: Job | None,
    sample: float | str,
    generation: int | None,
    sha256: bool,
    sources: Sequence[str],
) -> Verdict:
    if problem := unfinished_redaction(storage, following):
        return Verdict(False, [problem], len(latest.shards), 0, 0, 0)
    there, problems = check_names(storage, latest, following)
    problems += check_manifest(latest, storage.read(MANIFEST_NAME))
    problems += check_metadata(storage, latest, there)
    manifest = latest
    if generation is not None and not problems:
        manifest = Manifest.load_finished(storage, generation)
    dataset = Dataset(storage, manifest)
    # What is damaged would be named again, for each thing that is wrong in it.
    if not problems:
        problems += check_curated(dataset)
    numbers = {file.name: number for number, file in enumerate(manifest.files)}
    # Later generations may have redacted documents in the shards of an earlier one.
    names = {shard.name for shard in manifest.shards}
    shards = [shard for shard in latest.shards if shard.name in names]
    with ThreadPoolExecutor(usable_cores()) as pool:
        check = partial(check_shard, dataset, there=there, numbers=numbers)
        findings = list(pool.map(check, shards))
    problems += [problem for of_shard in findings for problem in of_shard.problems]
    problems += check_stream(manifest, findings, numbers)
    if not problems and following is None and manifest.generation == latest.generation:
        problems += _check_shared_texts(storage, manifest)
        problems += check_published(storage, manifest, sha256)
    compared = Compared()
    if not problems and (percent := _percent(sample, manifest.totals["documents"])):
        compared = _compare(storage, with_sources(manifest, sources), percent)
        problems += compared.problems
    return Verdict(
        ok=not problems,
        problems=problems,
        shards=len(findings),
        tokens=sum(of_shard.tokens for of_shard in findings),
        documents=sum(of_shard.documents for of_shard in findings),
        sampled=compared.documents,
        judged=compared.judged,
        hashed=len(sums.contents(manifest)) if sha256 and not problems else 0,
    )


def _check_shared_texts(storage: Storage, manifest: Manifest) -> Iterator[str]:
    """The manifest counts as many leaks and repeats as the document tables have."""
    leaks, repeats, rule = manifest.leaks, manifest.repeats, manifest.settings.split
    if leaks is None and repeats is None:
        return
    # Before the latest generation that added files.
    files = [generation.files for generation in manifest.generations if generation.files]
    earlier = manifest.reports[: sum(files[:-1])]
    before = () if repeats is None else sums_by_stream(earlier, rule)
    comparison = Comparison.of(manifest.shards, before, rule)
    shared = SharedTexts.total(
        [
            compare_range(storage, rule, comparison, number, usable_cores())
            for number in range(comparison.ranges)
        ]
    )
    ours, theirs = shared.leaks, leaks or shared.leaks
    where = "by the hashes in the document tables"
    counts = {
        "test documents with a text of train": (ours.test_documents, theirs.test_documents),
        "train documents with a text of test": (ours.train_documents, theirs.train_documents),
        "new documents with the text of an earlier one": (shared.repeats, repeats),
    }
    for what, (has, says) in counts.items():
        if says is not None:
            yield from differences({what: has}, {what: says}, where)


def _compare(storage: Storage, manifest: Manifest, percent: float) -> Compared:
    """Compares with the sources, by functions of the user's own as their files are now."""
    steps = manifest.settings.recipe.steps if manifest.settings.recipe else ()
    if not own_process.alone and any(":" in name for step in steps for name in step.pins):
        return call_in_fresh_interpreter(compare_with_sources, storage, manifest, percent)
    return compare_with_sources(storage, manifest, percent)


def describe_verdict(verdict: Verdict) -> list[str]:
    """The outcome in a few lines: the counts, and every problem."""
    of = counted(verdict.files, "file") if verdict.files else counted(verdict.shards, "shard")
    counts = f"{of}, {counted(verdict.tokens, 'token')}"
    if verdict.documents or not verdict.files:
        counts += f", {counted(verdict.documents, 'document')}"
    if verdict.sampled:
        share = 100 * verdict.sampled / max(verdict.documents, 1)
        counts += (
            f"; {verdict.sampled:,} of {counted(verdict.documents, 'document')} ({share:.3g} %) "
            "compared with their sources"
        )
    if verdict.judged:
        counts += f"; {counted(verdict.judged, 'dropped document')} judged again"
    if verdict.hashed:
        counts += f"; {counted(verdict.hashed, 'file')} compared with {SUMS_NAME}"
    if verdict.ok:
        return [f"verified: {counts}"]
    advice = "" if verdict.files else "; fineshards repair mends what it can"
    return [
        f"NOT VERIFIED: {counted(len(verdict.problems), 'problem')}{advice}",
        *(f"  {problem}" for problem in verdict.problems),
        f"read: {counts}",
    ]
