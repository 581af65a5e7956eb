"""Writes a report of a finished dataset: one HTML file, from templates.

Everything that comes from data is escaped: a document that holds `</script>` stays text, and
control characters show as escapes. The page loads nothing: its style and script are in it, and its
Content-Security-Policy admits them by their hash.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from fineshards.credentials import refuse_secrets
from fineshards.curation.recipe_text import recipe_text
from fineshards.encoders.reference_check import COMPARED_SHARE
from fineshards.errors import OutputError, UsageError
from fineshards.printable import printable
from fineshards.publishing.facts import loading_snippets
from fineshards.reports.lengths import SEQUENCE_LENGTHS
from fineshards.reports.report_contents import MOST_GENERATIONS, TRIED, Contents, contents_of
from fineshards.shards.dataset_files import Dataset
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage
from fineshards.storage.temporary import scratch_folder_in
from fineshards.verification.verify import Verdict, describe_verdict
from fineshards.verification.verify import verify as verify_dataset
from fineshards.wording import (
    approximately,
    counted,
    describe_leaks,
    ratio,
    share,
    shortened,
    size,
)


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
    title: str | None = None,
    sources: Sequence[str] = (),
    trust_input: bool = False,
) -> Report:
    """Writes a report of a finished dataset as one HTML file, which loads nothing else.

    Its bytes depend on the dataset alone: not on where it lies, nor on the clock or the machine.
    Three parts do: the section on verification; with a recipe the texts of what it dropped, which
    are read from the sources and left out where these are gone; and the shown documents, which are
    ids without text where the tokenizer cannot be loaded.

    Args:
        folder: The dataset's folder, local, `gs://` or `s3://`.
        output: The file to write, local, `gs://` or `s3://`; one that exists is replaced. Default:
            `NAME-report.html` by the name of the dataset's folder, in the current folder, or beside
            the dataset if that is the dataset's own.
        generation: The generation to describe, from 1, of a dataset that has grown. Default: the
            latest.
        verify: Whether to verify the dataset first, and to say in the report what was found and
            when.
        title: Its heading. Default: the name of the hub's dataset, or of the folder.
        sources: Where the source files are now: each is `OLD=NEW`. Only texts of what the recipe
            dropped are read from them.
        trust_input: Read source files of the same size, but another time or version.

    Returns:
        What was written, and what `verify` found.

    Raises:
        OutputError: The dataset or a redaction of it is not finished, its manifest or a document
            table is damaged, there is no such generation, or the file cannot be written.
        UsageError: The output is in the dataset's folder, or is there and is not a file.

    Example:
        >>> import fineshards
        >>> written = fineshards.report(dataset_folder, output=f"{folder}.html", verify=True)
        >>> written.verified, written.output == f"{folder}.html"
        (True, True)
    """
    storage = open_storage(folder)
    target = _target(storage, output)
    verified = None
    if verify:
        verdict = verify_dataset(folder, generation=generation)
        at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        verified = Verified(verdict, at, version("fineshards"))
    try:
        latest = Dataset.open(storage)
        dataset = latest if generation is None else Dataset.open(storage, generation)
        generations = latest.manifest.generations
        contents = contents_of(dataset, generations, sources, trust_input)
        if title is not None:
            contents = replace(contents, title=title)
    except OutputError as error:
        if verified is None or verified.verdict.ok:
            raise
        raise OutputError(_too_damaged(storage, verified.verdict)) from error
    written = report_page(contents, verified).encode()
    _write(target, written)
    if verified is None:
        return Report(target, len(written), None)
    verdict = verified.verdict
    return Report(target, len(written), verdict.ok, tuple(verdict.problems))


@dataclass(frozen=True, slots=True)
class Verified:
    """What verify found, when (UTC), and with which version."""

    verdict: Verdict
    at: str
    version: str


def report_page(contents: Contents, verified: Verified | None = None) -> str:
    """The report as HTML. Without `verified` it depends on the contents alone."""
    headings = {
        "verification": "Verification",
        "splits": "Splits",
        "lengths": "Document lengths",
        "sources": "Sources",
        "recipe": "Recipe" if contents.steps else "",
        "documents": "Documents",
        "exactness": "Exactness",
        "shards": "Shards",
        "generations": "Generations" if len(contents.summary.generations) > 1 else "",
        "load": "Load it",
        "provenance": "Provenance",
    }
    # Of this package, so not escaped; their hashes are those of these very bytes.
    script, style = Markup(asset("reports/page.js")), Markup(asset("reports/style.css"))
    return (
        _environment()
        .get_template("reports/report.html")
        .render(
            script=script,
            style=style,
            policy=f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; "
            "connect-src 'none'; img-src data:; base-uri 'none'; form-action 'none'",
            contents=contents,
            verified=verified,
            sections=[(anchor, heading) for anchor, heading in headings.items() if heading],
            approximately=approximately,
            describe_leaks=describe_leaks,
            describe_verdict=describe_verdict,
            loading_snippets=loading_snippets,
            recipe_text=recipe_text,
            size=size,
            COMPARED_SHARE=COMPARED_SHARE,
            FOLDED=("exactness", "shards", "provenance"),
            MOST_GENERATIONS=MOST_GENERATIONS,
            SEQUENCE_LENGTHS=SEQUENCE_LENGTHS,
            TRIED=TRIED,
        )
    )


def asset(name: str) -> str:
    """A template, a style sheet or a script: a file of the package."""
    return files("fineshards").joinpath(name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(asset),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "number": "{:,}".format,
        "counted": counted,
        "coordinate": lambda value: f"{value:.2f}".rstrip("0").rstrip("."),
        "share": share,
        "ratio": ratio,
        "short": shortened,
    }
    return environment


def _visible(value: object) -> object:
    """Text with control characters as escapes, except for line feeds; all else as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(map(printable, value.split("\n")))


def _source(content: str) -> str:
    """An inline style or script as a source of the policy: by its hash."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def describe_report(written: Report) -> list[str]:
    """Where the report is, and what verify found."""
    lines = [f"wrote {written.output} ({counted(written.bytes, 'byte')})"]
    if written.verified is not None:
        lines.append("verified" if written.verified else "NOT VERIFIED")
        lines += [f"  {problem}" for problem in written.problems]
    return lines


def _too_damaged(storage: Storage, verdict: Verdict) -> str:
    """The message for a dataset whose damage, which verify has found, leaves nothing to report."""
    first, *others = verdict.problems
    more = f", and {len(others):,} more" if others else ""
    return (
        f"{storage.root} is too damaged for a report. NOT VERIFIED: {first}{more}. Run "
        "fineshards verify for the whole list, and fineshards repair to fix what can be fixed."
    )


def _target(dataset: Storage, output: str | os.PathLike[str] | None) -> str:
    """The file to write, as an absolute path or a URL."""
    root = _real(dataset.root)
    if output is None:
        output = f"{dataset.root.rstrip('/').rpartition('/')[2] or 'dataset'}-report.html"
        if _is_in(_real("."), root):
            output = os.path.join(os.path.dirname(root), output)
    target = refuse_secrets(os.fspath(output), "--output")
    if "://" in target:
        scheme, _, place = target.partition("://")
        bucket, _, name = place.partition("/")
        if not bucket or not name or name.endswith("/"):
            raise UsageError(f"--output {target} names no file. Give {scheme}://bucket/name.html.")
    else:
        target = os.path.abspath(os.path.expanduser(target))
        real = _real(target)
        if os.path.isdir(real):
            raise UsageError(f"--output {target} is a folder. Give the name of a file.")
        if os.path.lexists(real) and not os.path.isfile(real):
            raise UsageError(
                f"--output {target} is not a regular file. Give the name of a file, to be made or "
                "replaced."
            )
    if _is_in(_real(target), root):
        raise UsageError(
            f"--output {target} is in the dataset's folder, where verify allows no other files. "
            "Choose another place."
        )
    return target


def _real(path: str) -> str:
    """A path without links; a URL as it is."""
    return path.rstrip("/") if "://" in path else os.path.realpath(path)


def _is_in(path: str, folder: str) -> bool:
    """Whether a place is a folder, or in it."""
    return f"{path}/".startswith(f"{folder}/")


def _write(target: str, content: bytes) -> None:
    """Writes a file as a whole, in place of an earlier one."""
    if "://" in target:
        parent, _, name = target.rpartition("/")
        storage = open_storage(parent)
        storage.write(name, content, over=storage.version(name))
        return
    try:
        # A link stays, and what it leads to is replaced.
        real = os.path.realpath(target)
        # Beside it, because only there a file can be moved at once. The next report there removes
        # what a killed one leaves.
        with scratch_folder_in(os.path.dirname(real)) as scratch:
            unfinished = Path(scratch) / "report.html"
            unfinished.write_bytes(content)
            unfinished.replace(real)
    except OSError as error:
        raise OutputError(
            f"{target} cannot be written: {error.strerror}. Choose another place by --output."
        ) from error
