"""Completion, in the shells themselves."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.shell import in_shell

Run = Callable[..., subprocess.CompletedProcess[str]]


BASH = """
source completion
COMP_WORDS=({words}); COMP_CWORD={at}
COMP_LINE="${{COMP_WORDS[*]}}"; COMP_POINT=${{#COMP_LINE}}
_shtab_fineshards
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["fineshards", "ver"], {"verify", "version"}),
        (["fineshards", "build", "--dataset_"], None),
        (["fineshards", "build", "--dtype", "u"], {"uint16", "uint32"}),
        (["fineshards", "verify", "--s"], {"--sample", "--sha256", "--sources"}),
        (["fineshards", "completion", ""], {"bash", "zsh", "fish"}),
        (["fineshards", "help", "sta"], {"stats", "status"}),
        (["fineshards", "verify", "compl"], {"completion"}),  # a file
        (["fineshards", "export", "out", "--to", "meg"], {"megatron"}),
        (["fineshards", "build", "--recipe", "finew"], {"fineweb", "fineweb-edu", "fineweb2"}),
        (["fineshards", "build", "--recipe", "compl"], {"completion"}),
        (["fineshards", "build", "--tokenizer", "cl100k"], {"cl100k_base"}),
        (["fineshards", "recipe", "steps", "minh"], {"minhash"}),
    ],
)
def test_bash_completes_commands_flags_and_words(
    words: list[str], found: set[str] | None, tmp_path: Path, fineshards: Run
) -> None:
    (tmp_path / "completion").write_text(fineshards("completion", "bash").stdout)
    quoted = " ".join(f"'{word}'" for word in words)
    done = in_shell(BASH.format(words=quoted, at=len(words) - 1), tmp_path)
    assert done.stderr == ""
    if found is None:
        found = {f"--dataset_{what}" for what in ("config", "split", "test_split", "revision")}
    assert set(done.stdout.split()) == found


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_its_script(tmp_path: Path, fineshards: Run) -> None:
    (tmp_path / "_fineshards").write_text(fineshards("completion", "zsh").stdout)
    script = "autoload -U compinit; compinit -D; source ./_fineshards; echo $_comps[fineshards]"
    done = subprocess.run(["zsh", "-fc", script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("_shtab_fineshards\n", "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(tmp_path: Path, fineshards: Run) -> None:
    (tmp_path / "completion").write_text(fineshards("completion", "fish").stdout)
    script = "source completion; complete -C 'fineshards build --dtype u'"
    done = subprocess.run(["fish", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["uint16", "uint32"]
