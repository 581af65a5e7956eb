"""Documents are compared in bounded memory; one that is gone by then ends a job with a sentence."""

import json
import os
from pathlib import Path

import pytest

from fineshards.config import BuildConfig
from fineshards.errors import InputError
from fineshards.pipeline.launch import prepare
from fineshards.shards.tables.marks import Records
from fineshards.shards.tables.verdicts import WANTED
from fineshards.worker import marking
from fineshards.worker.judging import Judging
from fineshards.worker.tasks import discover_file
from fineshards.worker.work import Work

TEXT = "the same words in the same order again"


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("inline", [False, True])
def test_a_document_that_is_gone_is_named(tmp_path: Path, inline: bool, gone: int) -> None:
    source = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": TEXT}) for _ in range(2)]
    source.write_text("\n".join(lines))
    config = BuildConfig(input=source, output=tmp_path / "out", dedup="minhash")
    launch = prepare(config)
    work = Work.of(launch.checkpoints, launch.job, config, inline=inline)
    judging = Judging(work)
    (file,) = launch.job.files
    (block,) = discover_file(file, work)
    judged, _ = judging.judge_block(file, block, 0)
    ((partition, part),) = judging.keyed_step(0).split_keys(judged.keys, 1)
    found = judging.keyed_step(0).mark_keys(partition, 1, [part])
    # Edited in its place, with the size and the times of before.
    times = source.stat()
    lines[gone] = lines[gone].replace(json.dumps(TEXT), "null".ljust(len(TEXT) + 2))
    source.write_text("\n".join(lines))
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    comparing = judging.keyed_step(0)
    wanted = [each for _, each in found if each[0] == WANTED]
    pairs = [each for _, each in found if each[0] != WANTED]
    with pytest.raises(InputError, match=rf"a.jsonl, row {gone}: the document is missing"):
        comparing.compare_documents(
            0, [*pairs, *(each for _, each in comparing.write_contents(0, wanted))]
        )


@pytest.mark.parametrize(("dedup", "kind"), [("exact", "mark"), ("minhash", "candidates")])
@pytest.mark.parametrize("inline", [False, True])
def test_a_key_that_all_documents_have_is_compared_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline: bool, dedup: str, kind: str
) -> None:
    for number in range(40):
        (tmp_path / f"{number:02d}.jsonl").write_text(json.dumps({"text": TEXT}))
    config = BuildConfig(
        input=tmp_path / "*.jsonl", output=tmp_path / "out", dedup=dedup, memory_bytes=64
    )
    launch = prepare(config)
    work = Work.of(launch.checkpoints, launch.job, config, inline=inline)
    judging = Judging(work)
    keyed, ranges = judging.keyed_step(0), []
    for file in launch.job.files:
        (block,) = discover_file(file, work)
        judged, _ = judging.judge_block(file, block, 0)
        ranges += [part for _, part in keyed.split_keys(judged.keys, 1)]
    sizes, compare = [], getattr(marking, kind)

    def measured(records: Records, of: int) -> Records:
        sizes.append(records.nbytes)
        return compare(records, of)

    monkeypatch.setattr(marking, kind, measured)
    found = keyed.mark_keys(0, 1, ranges)
    total = sum(stop - start for _, _, start, stop, _ in ranges)
    assert max(sizes) < total / 2
    marked = {file for file, each in found if each[0] == "marks"}
    assert marked == set(range(1, 40))
