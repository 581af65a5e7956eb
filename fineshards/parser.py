"""Parsers of commands: flags with underscores or hyphens, near-misses, the look of help pages."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from fineshards.errors import UsageError, did_you_mean

_WIDEST = 100
# How argparse begins the message about flags that must be given.
_REQUIRED = "the following arguments are required: "


class Parser(argparse.ArgumentParser):
    """A parser that takes hyphens for underscores, and reports mistakes as UsageError.

    hyphens: whether flags may be written with hyphens. Beam itself does not take them. everything:
    whether its help page has every flag.
    """

    def __init__(self, *, hyphens: bool = True, everything: bool = True, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=_HelpPage, **kwargs)
        self._hyphens, self.everything = hyphens, everything
        self._given: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See argparse."""
        given = sys.argv[1:] if args is None else args
        self._given = [_with_underscores(arg) if self._hyphens else arg for arg in given]
        return super().parse_known_args(self._given, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """See argparse."""
        parsed, rest = self.parse_known_args(args, namespace)
        if rest:
            self.refuse(rest[0])
        return parsed

    def parse_for_beam(self, args: Any = None) -> Any:
        """As parse_args, but what nothing takes are options of Beam, in `beam_args`."""
        parsed, parsed.beam_args = self.parse_known_args(args)
        if parsed.beam_args and not parsed.beam_args[0].startswith("-"):
            takes_input = "--input" in self._option_string_actions
            self.refuse(parsed.beam_args[0], ": files follow --input" if takes_input else "")
        return parsed

    def refuse(self, argument: str, why: str = "", more_flags: Sequence[str] = ()) -> NoReturn:
        """Raises UsageError for an argument that nothing takes.

        why: words after the argument. more_flags: those that may have been meant, too.
        """
        if not argument.startswith("-"):
            raise UsageError(f"unexpected argument {argument!r}{why}. See {self.prog} --help.")
        flag = argument.partition("=")[0]
        hint = did_you_mean(flag, [*self._option_string_actions, *more_flags])
        raise UsageError(f"unknown flag {flag}{why}.{hint} See {self.prog} --help.")

    def error(self, message: str) -> NoReturn:
        """Called by argparse for a mistake in the command."""
        if message.startswith(_REQUIRED):
            *some, last = message.removeprefix(_REQUIRED).split(", ")
            message = f"give {', '.join(some)}{' and ' * bool(some)}{last}"
        sentence = message.removeprefix("argument ")
        end = "" if sentence.endswith("?") else "."
        raise UsageError(f"{sentence}{end} See {self.prog} --help.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        words = list(map(str, action.choices or ()))
        if words and value not in words:
            hint = did_you_mean(str(value), words)
            sentence = f"must be {' or '.join(words)}, got {value!r}{hint and '.'}{hint}"
            raise argparse.ArgumentError(action, sentence)

    def unknown_flags(self) -> list[str]:
        """The flags of the command line that this parser does not have."""
        flags = [arg.partition("=")[0] for arg in self._given if arg.startswith("--")]
        return [flag for flag in flags if flag not in self._option_string_actions]


def boolean(text: str) -> bool:
    """A type of flag that takes true or false."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, got {text!r}")
    return text.lower() == "true"


def _with_underscores(argument: str) -> str:
    """A flag with underscores for hyphens; a value, or an argument without a flag, as it is."""
    flag, equals, value = argument.partition("=")
    if not flag.startswith("--"):
        return argument
    return f"--{flag[2:].replace('-', '_')}{equals}{value}"


class _HelpPage(argparse.RawDescriptionHelpFormatter):
    """Help pages of up to 100 columns, with room for the names of flags."""

    def __init__(self, prog: str, **kwargs: Any) -> None:
        columns = shutil.get_terminal_size().columns
        super().__init__(
            prog, width=min(columns, _WIDEST) - 2, max_help_position=min(34, columns // 3), **kwargs
        )
