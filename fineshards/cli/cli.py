"""The command line: `fineshards COMMAND`."""

import sys
from collections.abc import Sequence
from typing import Any

from fineshards.cli.command import Answer, Command, show
from fineshards.cli.dataset_commands import APPEND, BUILD, ESTIMATE, RECIPE
from fineshards.cli.keep_commands import EXPORT, PUBLISH, REDACT, REPAIR, VERIFY
from fineshards.cli.look_commands import EXPLAIN, INSPECT, REPORT, STATS, STATUS
from fineshards.errors import UsageError, did_you_mean
from fineshards.parser import Parser
from fineshards.pipeline.recipe_flags import shipped_recipes
from fineshards.storage.temporary import remove_abandoned

# As the help page has them. Libraries are imported by the command that runs, so that help pages and
# mistakes are quick.
GROUPS = {
    "make": (BUILD, APPEND, ESTIMATE, RECIPE, STATUS),
    "look": (INSPECT, STATS, EXPLAIN, REPORT),
    "keep": (VERIFY, REPAIR, REDACT),
    "give": (EXPORT, PUBLISH),
}
COMMANDS = tuple(command for group in GROUPS.values() for command in group)
# Words that people try, and what does it.
_MEANT = {"find": "inspect --find"}
# Commands that the table does not have, with their lines on the help page.
_OTHERS = {
    "help": "show the help page of a command; help COMMAND all has every flag",
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


def help_page() -> Answer:
    """What `fineshards` without a command prints."""
    lines = ["usage: fineshards COMMAND ...", "", "Raw text in, exact token shards out.", ""]
    for title, group in GROUPS.items():
        lines += [f"{title}:", *(f"  {command.name:<12}{command.summary}" for command in group), ""]
    lines += ["more:", *(f"  {name:<12}{summary}" for name, summary in _OTHERS.items()), ""]
    lines.append("fineshards COMMAND --help shows examples and a command's flags.")
    return Answer({}, lines)


def _run(name: str, *arguments: str) -> int:
    if name in ("version", "--version", "-V"):
        return _version(arguments)
    if name in ("help", "--help", "-h"):
        return show(_help(*arguments))
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


def _help(*names: str) -> Answer:
    if names[1:] not in ((), ("all",)):
        raise UsageError("give one command: fineshards help COMMAND, or help COMMAND all.")
    if not names or names[0] in _OTHERS:
        return help_page()
    return _command(names[0]).help_page(everything=len(names) > 1)


def _completion(*arguments: str) -> str:
    import shtab

    if len(arguments) != 1 or (shell := arguments[0]) not in _SHELLS:
        hint = did_you_mean(arguments[0], _SHELLS) if arguments else ""
        raise UsageError(f"give a shell: fineshards completion {'|'.join(_SHELLS)}.{hint}")
    from fineshards.curation.recipe_text import step_names
    from fineshards.encoders.vocabulary import encoding_names

    recipes = [*shipped_recipes()]
    named: dict[str, Sequence[str]] = {
        "tokenizer": encoding_names(),
        "recipe": recipes,
        "recipe name": [*recipes, *step_names()],
    }
    whole = Parser(prog="fineshards", add_help=False)
    commands = whole.add_subparsers()
    for command in COMMANDS:
        name, about, parents = command.name, command.summary, [command.parser()]
        parser = commands.add_parser(name, help=about, parents=parents, add_help=False)
        for action in parser._actions:
            if plugins := getattr(action, "plugins", None):
                action.choices = list(plugins)
            if action.nargs != 0 and not action.choices:
                names = named.get(f"{name} {action.dest}", named.get(action.dest, ()))
                action.complete = _files_or(names)  # type: ignore[attr-defined]
    words = {"help": [command.name for command in COMMANDS], "completion": _SHELLS}
    for name, summary in _OTHERS.items():
        parser = commands.add_parser(name, help=summary, add_help=False)
        if name in words:
            parser.add_argument("word", choices=words[name])
    return shtab.complete(whole, shell)


def _files_or(words: Sequence[str]) -> dict[str, Any]:
    """The completion of file names and of other words; as shtab takes it, by shell."""
    import shtab

    if not words:
        return shtab.FILE
    listed = " ".join(words)
    function = f"_fineshards_files_or_{words[0]}_and_{len(words)}"
    return {
        "bash": function,
        "zsh": f"{{_files; compadd - {listed}}}",
        "fish": f"(printf '%s\\n' {listed}; __fish_complete_path (commandline -ct))",
        "preamble": {"bash": f'{function}() {{ compgen -f -W "{listed}" -- "$1"; }}'},
    }


def _command(name: str) -> Command:
    """The command of a name; raises UsageError if there is none."""
    for command in COMMANDS:
        if command.name == name:
            return command
    if name.startswith("-"):
        raise UsageError(
            f"{name}: give a command first, such as fineshards build {name}. See fineshards --help."
        )
    words = [*(command.name for command in COMMANDS), *_OTHERS]
    hint = f" Did you mean {_MEANT[name]}?" if name in _MEANT else did_you_mean(name, words)
    raise UsageError(f"unknown command {name!r}.{hint} See fineshards --help.")
