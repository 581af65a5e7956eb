"""Writes the reference of the public names from their docstrings: `python docs/make_api.py FOLDER`.

Three pages, in the order a user meets them. Run by `make site`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

import fineshards
from fineshards.errors import InputError, OutputError, UsageError
from fineshards.exports.record import Export, FileRecord
from fineshards.inspection.dropped import Decision, DroppedDocuments, SourceText
from fineshards.inspection.explain import ExplainedDocument, ExplainedSample, ExplainedStep
from fineshards.inspection.inspect import Match, MatchedPiece, Matches, TokenPlace
from fineshards.inspection.stats import Count, Satisfied, Stats
from fineshards.job_status.status import Stage, Status
from fineshards.loader.batches import DrawnSample
from fineshards.loader.drawn_samples import DrawnSamples
from fineshards.loader.tokens.split_documents import SampleDocument, SplitDocuments, WholeDocument
from fineshards.maintenance.redact import Redacted
from fineshards.maintenance.repair import Repaired
from fineshards.pipeline.sample import Check, Estimate
from fineshards.publishing.publish import Published
from fineshards.reports.report import Report
from fineshards.shards.counts import Counts
from fineshards.shards.job.manifest import Manifest
from fineshards.verification.verify import Verdict

# The public names with the types they take, return and raise, by page and section.
BUILD: dict[str, list[Any]] = {
    "Building": [fineshards.build, fineshards.append, fineshards.Recipe, Manifest, Counts],
    "Beforehand": [
        fineshards.estimate,
        Estimate,
        fineshards.recipe_check,
        Check,
        DroppedDocuments,
        Decision,
        SourceText,
    ],
    "Following": [fineshards.status, Status, Stage],
    "Repairing and redacting": [fineshards.repair, Repaired, fineshards.redact, Redacted],
    "Errors": [fineshards.FineshardsError, UsageError, InputError, OutputError],
}
INSPECT: dict[str, list[Any]] = {
    "Checking": [fineshards.verify, Verdict],
    "Finding": [fineshards.find, Matches, TokenPlace, Match, MatchedPiece],
    "Explaining": [fineshards.explain, ExplainedStep, ExplainedSample, ExplainedDocument],
    "Counting": [fineshards.stats, Stats, Count, Satisfied],
    "Reporting": [fineshards.report, Report],
}
TRAIN: dict[str, list[Any]] = {
    "Training": [
        fineshards.TokenDataset,
        SampleDocument,
        WholeDocument,
        fineshards.WholeDocuments,
        fineshards.BatchLoader,
        fineshards.ContextParallel,
        DrawnSample,
        fineshards.Packing,
        fineshards.Mixture,
        fineshards.linear_schedule,
    ],
    "Exporting": [fineshards.export, Export, FileRecord],
    "Publishing": [fineshards.publish, Published],
}
PAGES = {
    "api.md": ("Build", BUILD),
    "api-inspect.md": ("Inspect", INSPECT),
    "api-train.md": ("Train", TRAIN),
}
# Methods of public classes that are for the loader's own use.
_HELPERS = {
    *("part", "saved", "fingerprint_of", "generation_of"),
    *("gather_into", "refuse_unknown", "expect", "request"),
    *("request_tokens", "mask_between", "within_redacted", "documents_between"),
}
_NOTHING = inspect.Signature.empty
_HEADINGS = ("Args", "Returns", "Yields", "Raises", "Example", "Attributes")


def pages() -> dict[str, str]:
    """The pages by the names of their files. Each leads to what is on the others."""
    places = {
        value.__name__: f"[`{value.__name__}`]({file}#{value.__name__.lower()})"
        for file, (_, sections) in PAGES.items()
        for values in sections.values()
        for value in values
    }
    names = ", ".join(places.get(name, f"`{name}`") for name in fineshards.__all__)
    return {file: _page(title, names, sections) for file, (title, sections) in PAGES.items()}


def _page(title: str, names: str, sections: dict[str, list[Any]]) -> str:
    parts = [
        f"# Python: {title.lower()}\n",
        "Every example runs as a test.\n",
        f"`from fineshards import` offers {names}.\n",
    ]
    for title, values in sections.items():
        parts.append(f"## {title}\n")
        for value in values:
            parts += _described(value)
    return "\n".join(parts)


def _described(value: Any) -> Iterator[str]:
    yield f"### {value.__name__}\n"
    yield f"`{_path(value)}`\n"
    yield f"```python\n{_signature(value.__name__, value)}\n```\n"
    yield _markdown(inspect.getdoc(value) or "")
    if not inspect.isclass(value):
        return
    bases = [value, *(base for base in value.__mro__ if base in (SplitDocuments, DrawnSamples))]
    members = {name: member for each in reversed(bases) for name, member in vars(each).items()}
    for name, member in members.items():
        if name in _HELPERS:
            continue
        member = getattr(member, "__func__", member)
        member = getattr(member, "fget", member)
        if name.startswith("_") or not inspect.isfunction(member) or not member.__doc__:
            continue
        is_property = isinstance(members[name], property)
        shown = name if is_property else _signature(name, member)
        yield f"#### {value.__name__}.{name}\n"
        yield f"```python\n{shown}\n```\n"
        yield _markdown(inspect.getdoc(member) or "")


def _path(value: Any) -> str:
    public = getattr(fineshards, value.__name__, None) is value
    return f"{'fineshards' if public else value.__module__}.{value.__name__}"


def _signature(name: str, value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except ValueError:  # exceptions without an __init__ of their own
        return name
    # Annotations are strings, and are shown without quotes.
    parameters = [
        each.replace(annotation=_AsWritten(each.annotation))
        if isinstance(each.annotation, str)
        else each
        for each in signature.parameters.values()
    ]
    returns = signature.return_annotation
    end = f" -> {returns}" if isinstance(returns, str) and not inspect.isclass(value) else ""
    text = f"{name}{signature.replace(parameters=parameters, return_annotation=_NOTHING)}{end}"
    if len(text) <= 88:
        return text
    # One argument per line, as a formatter writes it.
    lines, keyword_only = [], False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            lines.append("*")
        lines.append(str(parameter))
    text = "\n".join(fill(f"    {line},", 96, subsequent_indent=" " * 8) for line in lines)
    return f"{name}(\n{text}\n){end}"


class _AsWritten:
    """An annotation whose representation is its text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _markdown(docstring: str) -> str:
    """A Google-style docstring as Markdown."""
    out: list[str] = []
    section = ""
    for line in docstring.splitlines():
        heading = line.rstrip(":")
        if line.endswith(":") and heading in _HEADINGS:
            section = heading
            out += ["", f"**{section}**", ""]
            if section == "Example":
                out.append("```python")
            continue
        if section == "Example":
            if line and not line.startswith(" "):
                out.append("```")
                section = ""
            else:
                line = line.removeprefix("    ")
        elif section and line.startswith("    "):
            line = re.sub(r"^ {4}(\*{0,2}\w+): ", r"- `\1`: ", line)
            line = re.sub(r"^ {8}", "  ", line).removeprefix("    ")
        elif line and section:
            section = ""
            out.append("")
        out.append(line)
    if section == "Example":
        while not out[-1]:
            out.pop()
        out.append("```")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out).strip()) + "\n"


if __name__ == "__main__":
    for file, page in pages().items():
        Path(sys.argv[1], file).write_text(page)
