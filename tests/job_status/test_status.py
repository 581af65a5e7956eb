"""Status: progress at every stage, from the folder alone."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from fineshards.cli.cli import main
from fineshards.cli.options import add_build_flags, parse_build_flags
from fineshards.config import BuildConfig
from fineshards.parser import Parser
from fineshards.pipeline.launch import prepare
from fineshards.shards.assembly import write_shard
from fineshards.shards.counts import report_file
from fineshards.shards.piece_plan import plan_pieces, plan_stream
from fineshards.shards.tables.block_counts import rows_of
from fineshards.transforms.commit import commit
from fineshards.worker.judging import Judging
from fineshards.worker.tasks import Worker, discover_file, finish_block
from fineshards.worker.work import Work


def status(capsys: pytest.CaptureFixture[str], folder: Path) -> tuple[dict[str, Any], str]:
    """The status as JSON and as text."""
    capsys.readouterr()
    assert main(["status", str(folder), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert main(["status", str(folder)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(content["stage"])
    return content, text


def amounts(content: dict[str, Any]) -> dict[str, tuple[int, int | None]]:
    """What is done of each stage, and of how much."""
    return {each["name"]: (each["done"], each["total"]) for each in content["stages"]}


def test_a_folder_without_a_job_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(tmp_path), "--json"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"fineshards: {tmp_path} holds no fineshards job")
    assert printed.out == ""


def test_a_job_that_no_one_works_on_is_noticed(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = BuildConfig(input=sample, output=tmp_path, block_bytes=1)
    launch = prepare(config)
    work = Work.of(launch.checkpoints, launch.job, config)

    def age(seconds: float) -> None:
        for path in tmp_path.rglob("*"):
            os.utime(path, times=(time.time() - seconds,) * 2)

    def idle() -> tuple[float, bool]:
        content, text = status(capsys, tmp_path)
        return content["seconds_idle"], "probably not running" in text

    # Just launched, then discovered, then with a block.
    (file,) = launch.job.files
    for step in (
        lambda: None,
        lambda: discover_file(file, work),
        lambda: finish_block(file, discover_file(file, work)[0]).run(Worker(work)),
    ):
        step()
        seconds, gone = idle()
        assert (seconds < 60, gone) == (True, False)
        age(14 * 60)
        seconds, gone = idle()
        assert 14 * 60 <= seconds < 15 * 60
        assert gone
        assert "nothing written for 14 min" in status(capsys, tmp_path)[1]
    # A file that is being written shows before it is complete.
    with launch.checkpoints.storage.create("checkpoints/some", durable=False):
        assert idle()[1] is False


def test_every_stage_of_a_job_is_reported(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The functions of the steps, in the order in which a job runs them."""
    flags = ["--shard_tokens=60000", "--block_bytes=1"]
    given = [f"--input={sample}", f"--output={tmp_path}", *flags]
    parser = Parser()
    add_build_flags(parser)
    config = parse_build_flags(parser, given)
    launch = prepare(config)
    job, checkpoints = launch.job, launch.checkpoints
    work = Work.of(checkpoints, job, config)
    now, _ = status(capsys, tmp_path)
    assert now["stage"] == "discovering"
    assert amounts(now) == {"read": (0, 1), "tokenize": (0, None), "write": (0, None)}

    (file,) = job.files
    blocks = discover_file(file, work)
    now, text = status(capsys, tmp_path)
    assert (now["stage"], now["tokens"]) == ("tokenizing", 0)
    assert amounts(now) == {"read": (1, 1), "tokenize": (0, len(blocks)), "write": (0, None)}
    assert f"  tokenize  0 of {len(blocks)} blocks, 0 tokens\n" in text

    worker = Worker(work)
    summaries = []
    for number, block in enumerate(blocks, start=1):
        summary, _ = finish_block(file, block).run(worker)
        summaries.append(summary)
        now, text = status(capsys, tmp_path)
        assert (now["stage"], amounts(now)["tokenize"][0]) == ("tokenizing", number)
        assert now["tokens"] == sum(summary.counts.tokens for summary in summaries)
        texts = [block.bytes for block in blocks]
        expected = now["tokens"] * sum(texts) // sum(texts[:number])
        assert now["tokens_expected"] == (expected if number < len(blocks) else None)
        assert amounts(now)["write"] == (0, None)

    report = report_file(summaries)
    plan = plan_stream([report], job.settings.shard_tokens, job.settings.split)
    checkpoints.write_layout(plan.layout)
    now, _ = status(capsys, tmp_path)
    assert (now["stage"], amounts(now)["write"]) == ("writing", (0, plan.layout.windows))

    pieces = list(plan_pieces(summaries, plan))
    records = []
    for number, key in enumerate([shard.key for shard in plan.layout.shards()], start=1):
        mine = [piece for owner, piece in pieces if owner == key]
        records.append(write_shard(plan.layout.shard(key), mine, checkpoints, [file.name]))
        now, text = status(capsys, tmp_path)
        assert (now["stage"], amounts(now)["write"][0]) == ("writing", number)
        shards = f"{number} of " if number < plan.layout.windows else ""
        assert f"  write     {shards}{plan.layout.windows} shards\n" in text

    commit(records, [report], plan, work, [rows_of(summaries)])
    now, text = status(capsys, tmp_path)
    assert (now["stage"], now["tokens"]) == ("finished", plan.layout.tokens)
    assert amounts(now)["write"] == (plan.layout.windows,) * 2
    assert text.startswith(f"finished: {plan.layout.tokens:,} tokens in {plan.layout.windows} ")
    assert main(["verify", str(tmp_path)]) == 0


def test_the_stages_of_a_recipe_are_reported(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = BuildConfig(input=sample, output=tmp_path, block_bytes=1, dedup="exact")
    launch = prepare(config)
    judging = Judging(Work.of(launch.checkpoints, launch.job, config))
    (file,) = launch.job.files
    assert " 1 file\n  judge     step 1 exact\n  tokenize\n" in status(capsys, tmp_path)[1]
    blocks = discover_file(file, Work.of(launch.checkpoints, launch.job, config))
    for number, block in enumerate(blocks):
        now, text = status(capsys, tmp_path)
        assert (now["stage"], amounts(now)["judge"]) == ("judging", (number, len(blocks)))
        assert f"  judge     {number} of {len(blocks)} blocks, step 1 exact" in text
        judging.judge_block(file, block, 0)
    now, _ = status(capsys, tmp_path)
    assert (now["stage"], now["stages"][1]["state"]) == ("judging", "now")
    assert amounts(now)["judge"] == (len(blocks),) * 2
    judging.keyed_step(0).write_marked(file, (), ())
    now, text = status(capsys, tmp_path)
    assert (now["stage"], now["stages"][1]["state"]) == ("tokenizing", "done")
    assert f"  judge     {len(blocks)} blocks, step 1 exact\n  tokenize  0 of" in text
