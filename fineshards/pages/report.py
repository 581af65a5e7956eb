"""Writes a report of a finished dataset: one HTML file."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from fineshards.commands.verify import verify as verify_dataset
from fineshards.commands.wording import counted
from fineshards.errors import OutputError, UsageError
from fineshards.pages.report_contents import contents_of
from fineshards.pages.report_page import Verified, report_page
from fineshards.shards.dataset import Dataset
from fineshards.storage.base import Storage, open_storage


@dataclass(frozen=True, slots=True)
class Report:
    """A report that was written.

    Args:
        output: The file, as an absolute path or a URL.
        bytes: Its size.
        verified: What `verify` found; None if it was not asked for.
        problems: One sentence per problem that `verify` found.
    """

    output: str
    bytes: int
    verified: bool | None
    problems: tuple[str, ...] = ()


def report(
    folder: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    generation: int | None = None,
    verify: bool = False,
) -> Report:
    """Writes a report of a finished dataset as one HTML file, which loads nothing else.

    Its bytes depend on the dataset alone: not on where it lies, nor on the clock or the machine.
    Two parts do: the section on verification, and with a recipe the texts of what it dropped, which
    are read from the sources and left out where these are gone.

    Args:
        folder: The dataset's folder, local, `gs://` or `s3://`.
        output: The file to write, local, `gs://` or `s3://`; one that exists is replaced. Default:
            `NAME-report.html` in the current folder, by the name of the dataset's folder.
        generation: The generation to describe, from 1, of a dataset that has grown. Default: the
            latest.
        verify: Whether to verify the dataset first, and to say in the report what was found and
            when.

    Returns:
        What was written, and what `verify` found.

    Raises:
        OutputError: The dataset is not finished, its manifest or a document table is damaged, there
            is no such generation, or the file cannot be written.
        UsageError: The output is in the dataset's folder.

    Example:
        >>> import fineshards
        >>> written = fineshards.report(dataset_folder, output=f"{folder}.html", verify=True)
        >>> written.verified, written.output == f"{folder}.html"
        (True, True)
    """
    storage = open_storage(os.fspath(folder))
    target = _target(storage, output)
    contents = contents_of(Dataset.open(storage, generation))
    verified = None
    if verify:
        verdict = verify_dataset(folder, generation=generation)
        at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        verified = Verified(verdict, at, version("fineshards"))
    page = report_page(contents, verified).encode()
    _write(target, page)
    if verified is None:
        return Report(target, len(page), None)
    verdict = verified.verdict
    return Report(target, len(page), verdict.ok, tuple(verdict.problems))


def describe_report(written: Report) -> list[str]:
    """Where the report is, and what verify found."""
    lines = [f"wrote {written.output} ({counted(written.bytes, 'byte')})"]
    if written.verified is not None:
        lines.append("verified" if written.verified else "NOT VERIFIED")
        lines += [f"  {problem}" for problem in written.problems]
    return lines


def _target(dataset: Storage, output: str | os.PathLike[str] | None) -> str:
    """The file to write, as an absolute path or a URL."""
    if output is None:
        output = f"{dataset.root.rstrip('/').rpartition('/')[2] or 'dataset'}-report.html"
    target = os.fspath(output)
    far = "://" in target
    if not far:
        target = os.path.abspath(os.path.expanduser(target))
        if os.path.isdir(target):
            raise UsageError(f"--output {target} is a folder. Give the name of a file.")
    if f"{_real(target, far)}".startswith(f"{_real(dataset.root, '://' in dataset.root)}/"):
        raise UsageError(
            f"--output {target} is in the dataset's folder, where verify allows no other files. "
            "Choose another place."
        )
    return target


def _real(path: str, far: bool) -> str:
    return path.rstrip("/") if far else os.path.realpath(path)


def _write(target: str, content: bytes) -> None:
    """Writes a file as a whole, in place of an earlier one."""
    if "://" in target:
        parent, _, name = target.rpartition("/")
        storage = open_storage(parent)
        storage.write(name, content, over=storage.version(name))
        return
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        unfinished = f"{target}.{uuid.uuid4().hex}"
        try:
            Path(unfinished).write_bytes(content)
            os.replace(unfinished, target)
        finally:
            with suppress(FileNotFoundError):
                os.remove(unfinished)
    except OSError as error:
        raise OutputError(
            f"{target} cannot be written: {error.strerror}. Choose another place by --output."
        ) from error
