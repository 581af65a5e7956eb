"""Writes a report of a finished dataset: one HTML file, from templates.

Everything that comes from data is escaped: a document that holds `</script>` stays text, and
control characters show as escapes. The page loads nothing and has no script: its style is in it,
and its Content-Security-Policy admits that by its hash.
"""

import base64
import hashlib
import os
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from fineshards.credentials import refuse_secrets
from fineshards.curation.recipe_text import recipe_text
from fineshards.encoders.checked_encoder import COMPARED_SHARE
from fineshards.errors import OutputError, UsageError, printable
from fineshards.reports import report_contents
from fineshards.reports.report_contents import Contents, contents_of
from fineshards.shards.dataset_files import Dataset
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage
from fineshards.storage.temporary import scratch_folder_in
from fineshards.wording import counted, describe_leaks, share, shortened, size


@dataclass(frozen=True, slots=True)
class Report:
    """A report that was written.

    Args:
        output: The file, as an absolute path or a URL.
        bytes: Its size.
    """

    output: str
    bytes: int


def report(
    folder: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str] | None = None,
    generation: int | None = None,
    title: str | None = None,
) -> Report:
    """Writes a report of a finished dataset as one HTML file, which loads nothing else.

    Its bytes depend on the dataset alone: not on where it lies, nor on the clock or the machine.
    Where the tokenizer cannot be loaded, the shown documents are ids without text.

    Args:
        folder: The dataset's folder, local, `gs://` or `s3://`.
        output: The file to write, local, `gs://` or `s3://`; one that exists is replaced. Default:
            `NAME-report.html` by the name of the dataset's folder, in the current folder, or beside
            the dataset if that is the dataset's own.
        generation: The generation to describe, from 1, of a dataset that has grown. Default: the
            latest.
        title: Its heading. Default: the name of the hub's dataset, or of the folder.

    Returns:
        What was written.

    Raises:
        OutputError: The dataset or a redaction of it is not finished, its manifest or a document
            table is damaged, there is no such generation, or the file cannot be written.
        UsageError: The output is in the dataset's folder, or is there and is not a file.

    Example:
        >>> import fineshards
        >>> written = fineshards.report(dataset_folder, output=f"{folder}.html")
        >>> written.output == f"{folder}.html"
        True
    """
    storage = open_storage(folder)
    target = _target(storage, output)
    latest = Dataset.open(storage)
    dataset = latest if generation is None else Dataset.open(storage, generation)
    contents = contents_of(dataset, latest.manifest.generations)
    if title is not None:
        contents = replace(contents, title=title)
    written = report_page(contents).encode()
    _write(target, written)
    return Report(target, len(written))


def report_page(contents: Contents) -> str:
    """The report as HTML."""
    headings = {
        "splits": "Splits",
        "lengths": "Document lengths",
        "sources": "Sources",
        "recipe": "Recipe" if contents.stats and contents.stats.steps else "",
        "documents": "Documents",
        "exactness": "Exactness",
        "generations": "Generations" if len(contents.summary["generations"]) > 1 else "",
        "provenance": "Provenance",
    }
    # Of this package, so not escaped; its hash is that of these very bytes.
    style = Markup(asset("reports/style.css"))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        _environment()
        .get_template("reports/report.html")
        .render(
            style=style,
            policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; "
            "base-uri 'none'; form-action 'none'",
            contents=contents,
            sections=[(anchor, heading) for anchor, heading in headings.items() if heading],
            describe_leaks=describe_leaks,
            recipe_text=recipe_text,
            size=size,
            COMPARED_SHARE=COMPARED_SHARE,
            limits=report_contents,
        )
    )


def asset(name: str) -> str:
    """A template or the style sheet: a file of the package."""
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
        "share": share,
        "ratio": lambda part, whole: f"{part / whole:.3f}" if whole else "–",
        "short": shortened,
    }
    return environment


def _visible(value: object) -> object:
    """Text with control characters as escapes, except for line feeds; all else as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "\n".join(map(printable, value.split("\n")))


def describe_report(written: Report) -> list[str]:
    """Where the report is."""
    return [f"wrote {written.output} ({counted(written.bytes, 'byte')})"]


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
        storage.replace(name, content, storage.version(name))
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
