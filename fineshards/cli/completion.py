"""Scripts that complete commands, flags, words and file names in a shell, from the parsers."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fineshards.errors import UsageError
from fineshards.suggestions import did_you_mean


@dataclass(frozen=True, slots=True)
class Completed:
    """What can follow a command: its flags, and other words."""

    name: str
    summary: str
    flags: Sequence[argparse.Action] = ()
    words: Sequence[str] = ()


def script(shell: str, commands: Sequence[Completed]) -> str:
    """The script for a shell; raises UsageError for one that is not known."""
    if shell not in SHELLS:
        raise UsageError(
            f"completion: unknown shell {shell!r}.{did_you_mean(shell, SHELLS)} "
            f"There is a script for each of {', '.join(SHELLS)}."
        )
    return "\n".join(SHELLS[shell](commands))


def _bash(commands: Sequence[Completed]) -> Iterator[str]:
    yield "# Use it now: source <(fineshards completion bash). Always: add that to ~/.bashrc."
    yield "_fineshards() {"
    yield '    local current="${COMP_WORDS[COMP_CWORD]}" words='
    yield '    local before="${COMP_WORDS[COMP_CWORD-1]}"'
    yield "    # Bash splits --flag=value at the sign."
    yield '    if [ "$current" = "=" ]; then current=""'
    yield '    elif [ "$before" = "=" ]; then before="${COMP_WORDS[COMP_CWORD-2]}"; fi'
    yield f'    if [ "$COMP_CWORD" -eq 1 ]; then words="{" ".join(c.name for c in commands)}"'
    yield '    else case "${COMP_WORDS[1]} $before $current" in'
    for command in commands:
        for flag in command.flags:
            if flag.choices:
                name, words = flag.option_strings[-1], " ".join(map(str, flag.choices))
                yield f'        "{command.name} {name} "*) words="{words}" ;;'
        if command.words:
            yield f'        "{command.name} {command.name} "*) words="{" ".join(command.words)}" ;;'
        names = " ".join(flag.option_strings[-1] for flag in command.flags)
        yield f'        "{command.name} "*" -"*) words="{names}" ;;'
    yield "    esac; fi"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "}"
    yield "# File names where no word fits."
    yield "complete -o bashdefault -o default -F _fineshards fineshards"


def _zsh(commands: Sequence[Completed]) -> Iterator[str]:
    yield "#compdef fineshards"
    yield "# Use it now: source <(fineshards completion zsh). Always: save it as _fineshards in a"
    yield "# folder of $fpath."
    yield "_fineshards() {"
    yield "    if (( CURRENT == 2 )); then"
    yield "        local -a commands=("
    for command in commands:
        yield f"            {_quoted(f'{command.name}:{command.summary}')}"
    yield "        )"
    yield "        _describe command commands"
    yield "        return"
    yield "    fi"
    yield "    local command=$words[2]"
    yield "    shift words; (( CURRENT-- ))"
    yield "    case $command in"
    for command in commands:
        yield f"        {command.name}) _arguments \\"
        for flag in command.flags:
            yield f"            {_quoted(_zsh_flag(flag))} \\"
        rest = f"({' '.join(command.words)})" if command.words else "_files"
        yield f"            '*:argument:{rest}' ;;"
    yield "    esac"
    yield "}"
    yield 'if [ "$funcstack[1]" = "_fineshards" ]; then _fineshards "$@"'
    yield "else compdef _fineshards fineshards; fi"


def _zsh_flag(flag: argparse.Action) -> str:
    name, brief = flag.option_strings[-1], _brief(flag).translate(str.maketrans("[]", "()"))
    if flag.nargs in (0, "?"):
        return f"{name}[{brief}]"
    repeated = "*" if flag.nargs == "+" else ""
    values = f"({' '.join(map(str, flag.choices))})" if flag.choices else "_files"
    return f"{repeated}{name}=[{brief}]:value:{values}"


def _fish(commands: Sequence[Completed]) -> Iterator[str]:
    yield "# Use it now: fineshards completion fish | source. Always: save it as"
    yield "# ~/.config/fish/completions/fineshards.fish."
    for command in commands:
        summary = _quoted(command.summary)
        yield f"complete -c fineshards -n __fish_use_subcommand -f -a {command.name} -d {summary}"
    for command in commands:
        here = f"complete -c fineshards -n '__fish_seen_subcommand_from {command.name}'"
        if command.words:
            yield f"{here} -f -a '{' '.join(command.words)}'"
        for flag in command.flags:
            values = "-r -F"
            if flag.nargs in (0, "?"):
                values = ""
            elif flag.choices:
                values = f"-x -a '{' '.join(map(str, flag.choices))}'"
            name = flag.option_strings[-1].lstrip("-")
            yield f"{here} -l {name} {values} -d {_quoted(_brief(flag))}"


def _brief(flag: argparse.Action) -> str:
    """The beginning of a flag's help text."""
    return textwrap.shorten((flag.help or "").replace("%%", "%"), 70, placeholder=" ...")


def _quoted(text: str) -> str:
    """A text in single quotes, for zsh and fish alike."""
    return "'" + text.replace("\\", "").replace("'", "’") + "'"


SHELLS: dict[str, Callable[[Sequence[Completed]], Iterator[str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
