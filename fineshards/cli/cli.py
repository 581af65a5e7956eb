"""The command line: `fineshards COMMAND`."""

import sys
from collections.abc import Sequence

from fineshards.cli.check_commands import REDACT, REPAIR, VERIFY
from fineshards.cli.command import Answer, Command, show
from fineshards.cli.dataset_commands import APPEND, BUILD, ESTIMATE, RECIPE
from fineshards.cli.look_commands import EXPLAIN, INSPECT, STATS, STATUS
from fineshards.cli.share_commands import EXPORT, PUBLISH, REPORT
from fineshards.errors import UsageError, did_you_mean
from fineshards.parser import Parser
from fineshards.storage.temporary import remove_abandoned

# In the order of the help page. Libraries are imported by the command that runs, so that help pages
# and mistakes are quick.
COMMANDS = (
    *(BUILD, APPEND, STATUS, VERIFY, INSPECT, STATS, REPORT, EXPORT, PUBLISH, REPAIR, REDACT),
    *(EXPLAIN, ESTIMATE, RECIPE),
)
# Commands that the table does not have, with their lines on the help page.
_OTHERS = {
    "help": "show the help page of a command",
    "completion": "print a script that completes commands and flags, for bash, zsh or fish",
    "version": "print the version",
}
_SHELLS = ("bash", "zsh", "fish")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit code: 0, 1 for a failure, 2 for a mistake in the command.

    docs/templates/commands.md has all exit codes.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    from fineshards.cli.terminal import report_errors

    return report_errors(lambda: _run(*(arguments or ["help"])))


def help_page() -> str:
    """What `fineshards` without a command prints."""
    rows = {command.name: command.summary for command in COMMANDS} | _OTHERS
    return "\n".join(
        [
            "usage: fineshards COMMAND ...",
            "",
            "Raw text in, exact token shards out.",
            "",
            "commands:",
            *(f"  {name:<12}{summary}" for name, summary in rows.items()),
            "",
            "fineshards COMMAND --help shows a command's flags, and examples.",
        ]
    )


def _run(name: str, *arguments: str) -> int:
    if name in ("version", "--version", "-V"):
        return _version(arguments)
    if name in ("help", "--help", "-h"):
        return show(Answer({}, _help(*arguments).splitlines()))
    if name == "completion":
        return show(Answer({}, _completion(*arguments).splitlines()))
    command = _command(name)
    remove_abandoned()
    return command.run(arguments)


def _version(arguments: Sequence[str]) -> int:
    from importlib.metadata import version

    if arguments not in ((), ("--json",)):
        raise UsageError("fineshards version takes nothing but --json.")
    installed = version("fineshards")
    return show(Answer({"version": installed}, [f"fineshards {installed}"]), bool(arguments))


def _help(*names: str) -> str:
    if len(names) > 1:
        raise UsageError("give one command: fineshards help COMMAND.")
    if not names or names[0] in _OTHERS:
        return help_page()
    return _command(names[0]).parser().format_help()


def _completion(*arguments: str) -> str:
    import shtab

    if len(arguments) != 1 or (shell := arguments[0]) not in _SHELLS:
        hint = did_you_mean(arguments[0], _SHELLS) if arguments else ""
        raise UsageError(f"give a shell: fineshards completion {'|'.join(_SHELLS)}.{hint}")
    whole = Parser(prog="fineshards", add_help=False)
    commands = whole.add_subparsers()
    for each in COMMANDS:
        parents = [each.parser()]
        parser = commands.add_parser(each.name, help=each.summary, parents=parents, add_help=False)
        for action in parser._actions:
            if plugins := getattr(action, "plugins", None):
                action.choices = list(plugins)
            if action.nargs != 0 and not action.choices:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    words = {"help": [each.name for each in COMMANDS], "completion": _SHELLS}
    for name, summary in _OTHERS.items():
        parser = commands.add_parser(name, help=summary, add_help=False)
        if name in words:
            parser.add_argument("word", choices=words[name])
    return shtab.complete(whole, shell)


def _command(name: str) -> Command:
    """The command of a name; raises UsageError if there is none."""
    for command in COMMANDS:
        if command.name == name:
            return command
    if name.startswith("-"):
        raise UsageError(
            f"{name}: give a command first, such as fineshards build {name}. See fineshards --help."
        )
    hint = did_you_mean(name, [*(command.name for command in COMMANDS), *_OTHERS])
    raise UsageError(f"unknown command {name!r}.{hint} See fineshards --help.")
