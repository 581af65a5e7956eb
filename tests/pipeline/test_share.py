"""Shares of a job: machines with one folder and no runner give the bytes of one build."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.curated import made_up_files, write_files
from support.damage import flip_bit
from support.kills import kill
from support.oracle import files_in
from support.process_tree import start, wait_until

from fineshards.config import BuildConfig
from fineshards.errors import UsageError
from fineshards.job_status.status import status
from fineshards.pipeline.share import share_of

Run = Callable[..., subprocess.CompletedProcess[str]]
# The slow engine, so that there is a middle of a block; a manifest counts what it encodes.
FLAGS = ["--shard_tokens=50000", "--test_fraction=0.2", "--block_bytes=1"]
FLAGS.append("--tokenizer_engine=tiktoken")


@pytest.fixture(scope="module")
def plain(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All files of a plain build of the sample: 5 blocks and 14 shards."""
    from fineshards.cli.cli import main

    output = tmp_path_factory.mktemp("plain") / "out"
    assert main(["build", f"--input={sample}", f"--output={output}", *FLAGS]) == 0
    return files_in(output)


def said(run: Run, *arguments: object) -> str:
    """The only line that a share prints, when it ends well."""
    done = run("build", *arguments)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return line


@pytest.mark.long
def test_shares_that_overlap_die_and_are_missing_give_the_same_bytes(
    sample: Path, tmp_path: Path, plain: dict[str, bytes], fineshards: Run
) -> None:
    output = tmp_path / "out"
    command = ["build", f"--input={sample}", f"--output={output}", *FLAGS, "--workers=1"]
    # All at once, into a folder that is not there yet: 2/2 and 2/4 overlap, and 1/4 is missing.
    shares = [start(*command, f"--share={share}") for share in ("2/4", "2/2", "3/4", "3/4")]
    wait_until(lambda: [*output.glob("checkpoints/*/blocks/*.tokens")], shares[1])
    os.killpg(shares[1].pid, signal.SIGKILL)
    assert [share.wait() for share in shares] == [0, -signal.SIGKILL, 0, 0]
    assert status(output).stage == "tokenizing"
    assert not (output / "metadata/manifest.json").exists()
    for number in (1, 1, 2):  # one of them twice
        assert fineshards(*command, f"--share={number}/2").returncode == 0
    tokenized = status(output).of("tokenize")
    assert tokenized.done == tokenized.total == 5
    # Shards: a share that dies as it puts its second one in place, one that lives; 3/3 is missing.
    kill("replace:8", *command, "--share=1/3")
    assert fineshards(*command, "--share=2/3").returncode == 0
    shards = status(output)
    assert (shards.stage, 0 < shards.of("write").done < 14) == ("writing", True)
    late = start(*command, "--share=3/3")
    assert fineshards(*command).returncode == 0
    assert late.wait() == 0, late.stderr and late.stderr.read()
    assert files_in(output) == plain


def test_each_share_says_what_is_left(
    sample: Path, tmp_path: Path, plain: dict[str, bytes], in_process: Run
) -> None:
    output = tmp_path / "out"
    flags = [f"--input={sample}", f"--output={output}", *FLAGS]
    finishes = "or for the command without --share, which finishes the dataset"
    assert said(in_process, *flags, "--share=1/2") == (
        "share 1/2 ends: 2 of 5 blocks are left to tokenize, for shares that run next, " + finishes
    )
    assert said(in_process, *flags, "--share=2/2").startswith(
        "share 2/2 ends: all shards are left to write, for shares that run next"
    )
    assert said(in_process, *flags, "--share=1/2") == (
        "share 1/2 ends: 7 of 14 shards are left to write, for shares that run next, " + finishes
    )
    assert said(in_process, *flags, "--share=2/2") == (
        "share 2/2 ends: all shards are written, and the command without --share finishes the "
        "dataset"
    )
    assert in_process("build", *flags).returncode == 0
    assert files_in(output) == plain
    again = in_process("build", *flags, "--share=2/2")
    assert again.stdout.startswith("already finished, nothing to do")


def test_shares_judge_and_one_of_them_compares(tmp_path: Path, in_process: Run) -> None:
    write_files(tmp_path / "in", made_up_files(6, (16, 12)))
    flags = [f"--input={tmp_path}/in/*", "--shard_tokens=300", *FLAGS[1:], "--dedup=exact"]
    assert in_process("build", *flags, f"--output={tmp_path}/plain").returncode == 0
    parts = [
        [said(in_process, *flags, f"--output={tmp_path}/out", f"--share={k}/2") for k in order]
        for order in ((1, 2), (2, 1), (1, 2), (1, 2))
    ]
    assert "blocks are left to judge, step 1 exact, for shares" in parts[0][0]
    assert "documents are left to compare, step 1 exact, for share 1/2" in parts[0][1]
    assert parts[1][0] == parts[0][1]  # which did nothing
    assert "blocks are left to tokenize, for" in parts[1][1]
    assert "shards are left to write" in parts[2][1]
    assert "all shards are written" in parts[3][1]
    assert in_process("build", *flags, f"--output={tmp_path}/out").returncode == 0
    assert files_in(tmp_path / "out") == files_in(tmp_path / "plain")


def test_a_shuffle_has_no_shares_but_its_blocks_have(
    sample: Path, tmp_path: Path, in_process: Run
) -> None:
    flags = [f"--input={sample}", *FLAGS, "--shuffle_seed=1"]
    assert in_process("build", *flags, f"--output={tmp_path}/plain").returncode == 0
    flags.append(f"--output={tmp_path}/out")
    assert "2 of 5 blocks are left to tokenize" in said(in_process, *flags, "--share=1/2")
    last = [said(in_process, *flags, "--share=2/2") for _ in range(2)]
    assert (
        last
        == [
            "share 2/2 ends: the command without --share shuffles all documents, and finishes the "
            "dataset"
        ]
        * 2
    )
    assert in_process("build", *flags).returncode == 0
    assert files_in(tmp_path / "out") == files_in(tmp_path / "plain")


def test_a_block_that_a_power_cut_damaged_gets_into_no_shard(
    sample: Path, tmp_path: Path, plain: dict[str, bytes], in_process: Run
) -> None:
    output = tmp_path / "out"
    flags = [f"--input={sample}", f"--output={output}", *FLAGS]
    said(in_process, *flags, "--share=1/1")
    damaged = min(output.glob("checkpoints/*/blocks/*.train.tokens"))
    flip_bit(damaged, 1000)
    done = in_process("build", *flags, "--share=1/1")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"fineshards: {damaged} is not whole, or is gone since the shares have begun. Run the "
        "command without --share, which makes it again and does what is left."
    )
    assert in_process("build", *flags).returncode == 0
    assert files_in(output) == plain


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"share": "0/4"}, "--share must be K/N, with K from 1 to N, such as 3/64, got"),
        ({"share": "5/4"}, "--share must be K/N"),
        ({"share": "1/4 "}, "--share must be K/N"),
        ({"share": "1/4", "overwrite": True}, "--overwrite with --share: each share would delete"),
        ({"share": "1/4", "append": True}, "--share is for a build; an append has no shares."),
        ({"share": "1/4", "beam_args": ["--runner=FlinkRunner"]}, "--share is for local runs: a r"),
    ],
)
def test_a_share_that_cannot_be_is_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        share_of(BuildConfig(input="x", output="y", **options))  # type: ignore[arg-type]
    assert str(error.value).startswith(sentence)


def test_shares_of_every_count_cover_each_block_once() -> None:
    for count in (1, 2, 3, 64):
        shares = [
            share_of(BuildConfig(input="x", output="y", share=f"{k}/{count}"))
            for k in range(1, count + 1)
        ]
        for index in range(200):
            assert sum(share is not None and share.has(index) for share in shares) == 1
