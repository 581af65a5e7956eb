"""A command of `fineshards`: how it is called, what its help page says, and how it answers."""

from __future__ import annotations

import json
import sys
import time
from argparse import SUPPRESS, Namespace, _ActionsContainer, _ArgumentGroup
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msgspec import to_builtins

from fineshards.config import BuildConfig
from fineshards.errors import OutputError, UsageError, did_you_mean, printable
from fineshards.flags import count, flags_of
from fineshards.parser import Parser
from fineshards.pipeline.runners.choice import is_beams


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command.

    record: for `--json`. lines: for a person; each stays one line, whatever it quotes.
    exit_code: 0, or 1 where the result is a failure, such as a damaged dataset.
    """

    record: object
    lines: Sequence[str]
    exit_code: int = 0


def show(answer: Answer, as_json: bool = False) -> int:
    """Prints an answer on stdout; returns its exit code."""
    text = "\n".join(map(printable, answer.lines))
    if as_json:
        text = json.dumps(answer.record, default=to_builtins)
    if sys.stdout is None:
        raise OutputError("stdout cannot be written: it is closed.")
    # A terminal may not have all letters of a text.
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"stdout cannot be written: {error.strerror}.") from error
    return answer.exit_code


def note(line: str) -> None:
    """Prints a line on stderr, as the log lines that follow it look."""
    with suppress(OSError):  # no one may read it any more
        print(time.strftime("%H:%M:%S"), printable(line), file=sys.stderr, flush=True)


def every_ten_seconds(describe: Callable[[int], str]) -> Callable[[int], None]:
    """Returns a callback that logs progress at most every ten seconds."""
    noted = time.monotonic()

    def report(done: int) -> None:
        nonlocal noted
        if time.monotonic() - noted > 10:
            noted = time.monotonic()
            note(describe(done))

    return report


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    summary: its line in the list of commands. usage: its arguments in short. about: the first lines
    of its help page. examples: shell commands. answer: of the parsed arguments, or an exit code if
    there is nothing to print. end: the last lines of the page. for_beam: whether options of Beam
    may follow, as `args.beam_args`.
    """

    name: str
    summary: str
    usage: str
    about: str
    examples: tuple[str, ...]
    add_flags: Callable[[Parser], None]
    answer: Callable[[Namespace], Answer | int]
    end: str = ""
    for_beam: bool = False

    def help_page(self, everything: bool) -> Answer:
        """The command's help page. everything: with flags that few need."""
        return Answer({}, self.parser(everything).format_help().splitlines())

    def parser(self, everything: bool = True) -> Parser:
        """The command's parser, with its help page."""
        examples = "".join(f"\n  {example}" for example in self.examples)
        parser = Parser(
            prog=f"fineshards {self.name}",
            usage=f"fineshards {self.name} {self.usage}",
            description=f"{self.about}\n\nexamples:{examples}",
            epilog=self.end,
            everything=everything,
            add_help=False,
        )
        self.add_flags(parser)
        general = parser.add_argument_group("general")
        general.add_argument("--json", action="store_true", help="Print one JSON object.")
        about = "Show this page. --help all shows every flag."
        general.add_argument("-h", "--help", action="store_true", default=SUPPRESS, help=about)
        return parser

    def run(self, arguments: Sequence[str]) -> int:
        """Runs the command; returns its exit code."""
        if {"-h", "--help"} & {*arguments}:
            return show(self.help_page("all" in arguments))
        parser = self.parser()
        try:
            args = (parser.parse_for_beam if self.for_beam else parser.parse_args)(arguments)
            answer = self.answer(args)
        except UsageError as error:
            self._name_misspelt(parser, str(error))
            raise
        return answer if isinstance(answer, int) else show(answer, args.json)

    def _name_misspelt(self, parser: Parser, reason: str) -> None:
        """Raises UsageError for a misspelt flag, which may be why something else is wrong.

        reason: what that is.
        """
        ours = [f"--{flag.name}" for flag in flags_of(BuildConfig) if self.for_beam]
        for flag in parser.unknown_flags():
            hint = did_you_mean(flag, [*parser._option_string_actions, *ours])
            may_be_beams = self.for_beam and (not hint or is_beams(flag))
            if not may_be_beams and f"unknown flag {flag}" not in reason:
                raise UsageError(f"unknown flag {flag}.{hint} Also: {reason}") from None


def add_flag(group: _ActionsContainer, spelled: str, about: str, **options: Any) -> None:
    """Adds a flag to a parser or a group of one.

    spelled: the flag, and what it takes: `--step N` a number, as any single letter, unless a type
    is given; `--id ID` a text. A flag that takes nothing and has no choices is true if it is given.
    """
    name, _, metavar = spelled.partition(" ")
    if metavar:
        options["metavar"] = metavar
    elif "choices" not in options:
        options["action"] = "store_true"
    if len(metavar) == 1:
        options.setdefault("type", count)
    group.add_argument(name, help=about, **options)


def add_folder(parser: Parser) -> _ArgumentGroup:
    """Adds the argument FOLDER; returns its group."""
    group = parser.add_argument_group("dataset")
    group.add_argument(
        "folder", metavar="FOLDER", help="The dataset's folder, local, or a URL of gs:// or s3://."
    )
    return group


def add_folder_and_generation(parser: Parser) -> None:
    """Adds the argument FOLDER, and the flag that names a generation of it."""
    about = "Generation N, from 1, of a dataset that has grown. Default: the latest."
    add_flag(add_folder(parser), "--generation N", about)


def add_sources(parser: Parser, trusts: bool = False) -> None:
    """Adds the flags that say where the source files are now.

    trusts: whether another version of them may be read, which nothing proves to be the same.
    """
    group = parser.add_argument_group("source files")
    about = "Where they are now: what was in the folder OLD is in NEW. May be repeated."
    add_flag(group, "--sources OLD=NEW", about, nargs="+", action="extend", default=[])
    if trusts:
        add_flag(
            group, "--trust_input", "Read files of the same size, but another time or version."
        )
