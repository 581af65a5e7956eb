"""Writes the page of commands: `python docs/make_commands.py FILE`. Run by `make site`.

The words are those of `templates/commands.md`. The flags of a command take the place of the empty
table, `| flag | |`, in its section.
"""

from __future__ import annotations

import re
import sys
from argparse import SUPPRESS, Action
from pathlib import Path

from fineshards.cli.cli import COMMANDS
from fineshards.cli.command import Command
from fineshards.cli.dataset_commands import BUILD, ESTIMATE

TEMPLATE = Path(__file__).with_name("templates") / "commands.md"
# With fewer flags, one table is easier to read.
_MANY = 16
_HEAD = "| flag | |\n|---|---|\n"


def page() -> str:
    """The whole page."""
    text = TEMPLATE.read_text()
    for command in COMMANDS:
        before, heading, rest = text.partition(f"\n## {command.name}\n")
        section, end, after = rest.partition("\n## ")
        section = section.replace(_HEAD, tables(command), 1)
        text = before + heading + section + end + after
    return text


def tables(command: Command) -> str:
    """A command's flags: one table, or of many flags one per group with its name above it."""
    groups = {
        str(group.title): [
            _row(action) for action in group._group_actions if _belongs(action, command)
        ]
        for group in command.parser()._action_groups
    }
    rows = [row for group in groups.values() for row in group]
    if len(rows) < _MANY:
        return _HEAD + "".join(rows)
    return "\n".join(
        f"**{_markdown(title.capitalize())}**\n\n{_HEAD}{''.join(group)}"
        for title, group in groups.items()
        if group
    )


def _belongs(action: Action, command: Command) -> bool:
    if not action.option_strings or action.help == SUPPRESS:
        return False
    # The page says that every command has these, and that `estimate` has those of `build`.
    if action.option_strings[-1] in ("--help", "--json"):
        return False
    of_build = {flag.option_strings[-1]: flag.help for flag in BUILD.parser()._actions}
    return command is not ESTIMATE or of_build.get(action.option_strings[-1]) != action.help


def _row(action: Action) -> str:
    value = ""
    if action.choices:
        value = " " + ", ".join(f"`{choice}`" for choice in action.choices)
    elif action.nargs != 0 and action.metavar and action.metavar != "true|false":
        value = f" [{action.metavar}]" if action.nargs == "?" else f" {action.metavar}"
        value += " …" if action.nargs == "+" else ""
    about = _markdown((action.help or "") % vars(action))
    return f"| `{action.option_strings[-1]}`{value} | {about} |\n"


def _markdown(text: str) -> str:
    """Text as it is, in Markdown, with flags as code."""
    text = re.sub(r"([*<\[])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![\w`-])(--\w+)", r"`\1`", text.replace("|", "\\|"))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
