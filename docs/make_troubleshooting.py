"""Writes the page of error sentences, read from the code that raises them: `… FILE`.

Run by `make site`.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from fineshards import errors

ROOT = Path(__file__).parent.parent
_HEAD = """# Troubleshooting

Every error is one sentence: what happened and where, then what to do. Search this page for a part
of yours; … stands for a path, a name or a number. Flags that are out of range or misspelt name the
right ones. The exit code is 2 for a mistake in the command, and 1 for a failure
([all codes](commands.md#exit-codes)).

If the sentence begins with "unexpected", it is a bug: run the command again with
`FINESHARDS_TRACEBACK=1`, and report what it prints.
"""
# Headings, and the rooms whose sentences they have, in the order of a build and of what follows.
_ROOMS = {
    "Flags and commands": ("", "cli"),
    "Input": ("sources",),
    "Conversations": ("chat",),
    "Recipes": ("curation",),
    "Tokenizers": ("encoders",),
    "Builds and appends": ("pipeline", "transforms", "worker"),
    "Datasets, folders and stores": ("shards", "storage", "job_status", "inspection", "reports"),
    "Verify, repair and redact": ("verification", "maintenance"),
    "Training": ("loader",),
    "Exports and publishing": ("exports", "publishing"),
}
_KINDS = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.FineshardsError)
}


def page() -> str:
    """The whole page."""
    sentences = by_room()
    sections = []
    for heading, rooms in _ROOMS.items():
        rows = sorted({sentence for room in rooms for sentence in sentences.pop(room, ())})
        lines = [f"| {_cell(what)} | {_cell(advice)} |\n" for what, advice in map(_parts, rows)]
        sections.append(f"\n## {heading}\n\n| what it says | what to do |\n|---|---|\n")
        sections += lines
    assert not sentences, f"no heading has the rooms {', '.join(sentences)}"
    return _HEAD + "".join(sections)


def by_room() -> dict[str, set[str]]:
    """The sentences of each room of the package, with … for what a run fills in."""
    sentences = defaultdict(set)
    for folder in ("fineshards", "pipeline", "transforms"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name == "facts.py":  # what a card says of a dataset
                continue
            room, *_ = (*path.relative_to(ROOT).parts[folder == "fineshards" : -1], "")
            sentences[room] |= {*_made_in(ast.parse(path.read_text()))}
    return {room: made for room, made in sentences.items() if made}


def _made_in(tree: ast.Module) -> Iterator[str]:
    """The sentences of the errors of a module, and of its functions that return some."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in _KINDS:
            sentence = _text(node.args[0])
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.JoinedStr):
            sentence = _text(node.value)
            if not sentence.endswith(".") or ". " not in sentence:
                continue
        else:
            continue
        if sum(word.isalpha() for word in sentence.split()) > 2:
            yield sentence


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str()):
            return node.value
        case ast.JoinedStr():
            return "".join(map(_text, node.values))
        case ast.BinOp(op=ast.Add()):
            return _text(node.left) + _text(node.right)
    return "…"


def _parts(sentence: str) -> tuple[str, str]:
    """What happened, and what to do."""
    what, _, advice = sentence.partition(". ")
    return what.removesuffix(".") if what[-2:-1].isalpha() else what, advice


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("\n", " ")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
