"""`import fineshards`: the public names, and the state of the process after a build."""

from __future__ import annotations

import inspect
import json
import logging
import pickle
import re
import shutil
import time
from dataclasses import asdict, replace
from datetime import date
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.fresh_interpreter import run_program, tell_many
from support.oracle import oracle, read_texts, shards_in

import fineshards
from fineshards import Recipe, TokenDataset
from fineshards.config import BuildConfig
from fineshards.curation import steps as steps_of_recipes
from fineshards.curation.steps import Exact, GopherQuality, Length, MinHash, Regex, UserFunction
from fineshards.errors import InputError, UsageError
from fineshards.inspection.stats import describe_stats
from fineshards.job_status.status import Status
from fineshards.worker.fresh_interpreter import call_and_hear

# The state of a process that a library must not change.
STATE = """
import gc, json, logging, os, sys, threading, warnings

import apache_beam as beam
from apache_beam.transforms.userstate import BagStateSpec

import fineshards

LOGGERS = ["", *sorted(logging.root.manager.loggerDict), "fineshards", "fineshards.worker"]

def state():
    loggers = [logging.getLogger(name) for name in LOGGERS]
    return {
        "levels": [log.level for log in loggers],
        "handlers": [list(map(repr, log.handlers)) for log in loggers],
        "filters": [list(map(repr, log.filters)) for log in loggers],
        "streams": [repr(sys.stdout), repr(sys.stderr)],
        "descriptors": [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)],
        "importers": [repr(each) for each in sys.meta_path if "fineshards" in repr(each)],
        "collector": [gc.isenabled(), gc.get_freeze_count()],
        "threads": [thread.name for thread in threading.enumerate()],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "beam": [
            repr(beam.transforms.userstate.get_dofn_specs),
            repr(beam.runners.worker.statesampler.StateSampler.__init__.__defaults__),
        ],
    }

class RunningSum(beam.DoFn):
    '''A step of the user's own pipeline, with state, which the job's own steps do not use.'''

    SEEN = BagStateSpec("seen", beam.coders.VarIntCoder())

    def process(self, element, seen=beam.DoFn.StateParam(SEEN)):
        seen.add(element[1])
        yield element[0], sum(seen.read())

def run_own_pipeline(output):
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        _ = (
            pipeline
            | beam.Create([("a", 1), ("a", 2), ("b", 5)])
            | beam.ParDo(RunningSum())
            | beam.GroupByKey()
            | beam.MapTuple(lambda key, sums: f"{key} {max(sums)}")
            | beam.io.WriteToText(output, shard_name_template="")
        )
"""

BUILD = (
    STATE
    + """
source, output, own = sys.argv[1:]
before = state()
manifest = fineshards.build(input=source, output=output, shard_tokens=100_000, test_shards=1)
assert manifest.totals()["documents"] == 1063
assert state() == before, [(k, v, state()[k]) for k, v in before.items() if state()[k] != v]
again = fineshards.build(input=source, output=output, shard_tokens=100_000, test_shards=1)
assert again == manifest
run_own_pipeline(own)
"""
)

FAILING_BUILD = (
    STATE
    + """
source, output = sys.argv[1:]
before = state()
try:
    fineshards.build(input=source, output=output)
except fineshards.FineshardsError as error:
    assert "row 1: its 'text' is a number" in str(error), error
    assert "while running" not in str(error), error
else:
    raise AssertionError("the build did not fail")
assert state() == before, [(k, v, state()[k]) for k, v in before.items() if state()[k] != v]
"""
)


@pytest.mark.long
def test_a_build_returns_the_manifest_and_does_not_change_the_process(
    sample: Path, tmp_path: Path
) -> None:
    output, own = tmp_path / "out", tmp_path / "own.txt"
    done = run_program(BUILD, sample, output, own)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert shards_in(output) == oracle(read_texts(sample), 100_000, test_shards=1)
    assert sorted(own.read_text().split("\n")) == ["", "a 3", "b 5"]


@pytest.mark.long
def test_a_build_that_fails_raises_one_sentence_and_prints_nothing(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "good"}\n{"text": 1}\n')
    done = run_program(FAILING_BUILD, source, tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.long
def test_arguments_and_flags_describe_the_same_job(sample: Path, tmp_path: Path) -> None:
    from fineshards.cli.cli import main

    flags = ["--shard_tokens=50000", "--test_fraction=0.25", "--dtype=uint32"]
    assert main(["build", f"--input={sample}", f"--output={tmp_path / 'a'}", *flags]) == 0
    built = fineshards.build(
        input=[sample], output=tmp_path / "b", shard_tokens="50k", test_fraction=0.25
    )
    records = [json.loads((tmp_path / name / "metadata/job.json").read_text()) for name in "ab"]
    assert records[0] == records[1]
    lines = re.fullmatch(r"Manifest\('[0-9a-f]{12}'\): generation 1, (\d+) shards, .*", repr(built))
    assert lines is not None
    assert int(lines[1]) == len(built.shards)
    assert shards_in(tmp_path / "a") == shards_in(tmp_path / "b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "out"}, "--input or --dataset"),
        ({"input": "a", "dataset": "b", "output": "out"}, "--input or --dataset"),
        ({"input": "a"}, "--output"),
        ({"input": "a", "output": "out", "shard_tokens": 0}, "at least 1, got 0"),
        ({"input": "a", "output": "out", "shard_tokens": 1e6}, "whole number, got 1000000.0"),
        ({"input": "a", "output": "out", "shard_tokens": "1Mi"}, "100M or 1e8, got '1Mi'"),
        ({"input": "a", "output": "out", "shard_tokens": True}, "whole number, got True"),
        ({"input": "a", "output": "out", "shard_tokens": None}, "whole number, got None"),
        ({"input": "a", "output": None}, "--output"),
        ({"input": 5, "output": "out"}, "--input"),
        ({"input": "a", "output": "out", "tokenizer": None}, "--tokenizer must be text or a path"),
        ({"input": "a", "output": "out", "text_column": None}, "--text_column must be text"),
        ({"input": "a", "output": "out", "beam_args": "--x=1"}, "must be a list such as ['--x=1']"),
        ({"input": "a", "output": "out", "beam_args": ["--test_shard=1"]}, "--test_shard"),
        ({"input": "a", "output": Path("gs://b/x")}, "A Path drops one slash"),
        ({"input": "a", "output": "out", "max_bad_rows": -1}, "at least 0, got -1"),
        ({"input": "a", "output": "out", "test_fraction": 1.5}, "between 0 and 1"),
        ({"input": "a", "output": "out", "test_fraction": "x"}, "such as 0.1, got 'x'"),
        ({"input": "a", "output": "out", "test_fraction": float("nan")}, "such as 0.1"),
        ({"input": "a", "output": "out", "test_fraction": "1e9999999"}, "got '1e9999999'"),
        ({"input": "a", "output": "out", "test_fraction": "1E-9_999_999"}, "such as 0.1"),
        ({"input": "a", "output": "out", "test_fraction": Decimal("1e9999999")}, "such as 0.1"),
        ({"input": "a", "output": "out", "test_fraction": 0.1, "test_shards": 1}, "exclude"),
        ({"input": "a", "output": "out", "dtype": "int8"}, "auto or uint16 or uint32"),
        ({"input": "a", "output": "out", "overwrite": "no"}, "--overwrite must be True or False"),
        ({"input": "a", "output": "out", "assembly": "compose"}, "is for gs:// and s3://"),
        ({"input": "a", "output": "out", "dataset_config": "x"}, "goes with --dataset"),
        ({"dataset": "gs://b/x", "output": "out"}, "--dataset gs://b/x"),
    ],
)
def test_a_wrong_option_is_refused_with_one_sentence(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        fineshards.build(**options)
    assert message in str(refused.value)


@pytest.mark.parametrize("function", ["build", "estimate", "recipe_check"])
def test_an_unknown_option_is_named_and_the_right_one_suggested(function: str) -> None:
    with pytest.raises(TypeError, match=rf"{function} has no option 'inptu'\. Did you mean input"):
        getattr(fineshards, function)(inptu="a", output="b")


def test_an_unknown_option_of_an_append_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"append has no option 'inputs'\. Did you mean input"):
        fineshards.append(tmp_path, inputs="a")
    with pytest.raises(TypeError, match=r"by name: build\(input="):
        fineshards.build("a")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("function", "options"),
    [
        *((name, {}) for name in ("verify", "status", "stats", "report", "publish", "repair")),
        ("redact", {"documents": 1}),
        ("find", {"token": 1}),
        ("explain", {"document": 1}),
        ("export", {"output": "out", "to": "olmo"}),
    ],
)
def test_what_is_no_folder_is_refused(function: str, options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="the folder is 3; give a path"):
        getattr(fineshards, function)(3, **options)


def test_help_describes_every_option() -> None:
    described = fineshards.build.__doc__ or ""
    options = inspect.signature(fineshards.build).parameters
    missing = set(options) - {"beam_args"} - set(re.findall(r"^        (\w+): ", described, re.M))
    assert "progress" in options
    assert missing == set()


@pytest.mark.parametrize("option", ["keep_keys", "shard_tokens", "append"])
def test_what_an_estimate_does_not_count_is_refused(option: str) -> None:
    with pytest.raises(TypeError, match=f"estimate does not take '{option}'"):
        fineshards.estimate(input="a", **{option: "b"})


@pytest.mark.long
def test_an_id_is_one_id_and_not_its_letters(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    lines = [json.dumps({"id": str(n), "text": f"text {n}"}) for n in range(15)]
    source.write_text("\n".join(lines))
    out = tmp_path / "out"
    manifest = fineshards.build(input=source, output=out, test_fraction=0)
    assert "1 shard, 15 documents" in repr(manifest)
    for wrong, said in (
        ({"ids": [12]}, "12 is not an id: give ids as text"),
        ({"ids": 12}, "12 is not an id"),
        ({"documents": ["5"]}, "documents is '5'; give an integer"),
        ({"documents": "5"}, "documents is '5'"),
        ({"documents": True}, "documents is True"),
        ({}, "give the ids or the numbers"),
    ):
        with pytest.raises(UsageError, match=said):
            fineshards.redact(out, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--id is 3; give text"):
        fineshards.find(out, id=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--token is 'a'; give an integer"):
        fineshards.find(out, token="a")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"--date_published is datetime\.date.*; give text"):
        fineshards.publish(out, date_published=date(2026, 11, 30))  # type: ignore[arg-type]
    assert fineshards.redact(out, "12").documents == 1
    assert fineshards.redact(out, documents=np.int64(3)).documents == 1
    texts = [each.text for each in TokenDataset(out, sequence_length=8).all_documents()]
    assert texts == ["" if n in (3, 12) else f"text {n}" for n in range(15)]
    assert fineshards.verify(out)
    (out / "train/train_0000.npy").write_bytes(b"")
    assert not fineshards.verify(out)


def test_completion_offers_public_names_alone() -> None:
    assert dir(fineshards) == sorted(fineshards.__all__)


def test_what_libraries_log_in_a_fresh_interpreter_is_not_shown() -> None:
    done = run_program(
        "import logging\n"
        "from fineshards.worker.fresh_interpreter import call_in_fresh_interpreter\n"
        "call_in_fresh_interpreter(logging.warning, 'apitools not found')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_calling_process_logs_what_a_build_warns_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, copy = tmp_path / "first.jsonl", tmp_path / "copy.jsonl"
    for source in (first, copy):
        source.write_text('{"text": "one"}\n{"text": "two"}\n')
    fineshards.build(input=first, output=tmp_path / "out")
    assert caplog.messages == []
    # Tests of commands that ran in this process before may have set another level.
    caplog.set_level(logging.WARNING, "fineshards.worker.commit")
    fineshards.append(tmp_path / "out", input=copy)
    (message,) = caplog.messages
    assert "2 of 2 new documents have the text of a document" in message


def test_who_is_slow_hears_the_latest_alone(tmp_path: Path) -> None:
    told, heard = tmp_path / "told", []

    def hear(number: int) -> None:
        heard.append(number)
        while not told.exists():
            time.sleep(0.01)

    assert call_and_hear(hear, tell_many, told) == "done"
    assert heard in ([heard[0], 99], [99])


@pytest.mark.long
def test_progress_is_told_to_a_function_and_an_error_in_it_ends_the_build(
    sample: Path, tmp_path: Path
) -> None:
    seen: list[Status] = []
    manifest = fineshards.build(input=sample, output=tmp_path / "out", progress=seen.append)
    assert seen[-1].stage == "finished"
    assert seen[-1].tokens == manifest.totals()["tokens"]
    appended: list[Status] = []
    more = tmp_path / "more.jsonl"
    more.write_text('{"text": "one"}\n')
    fineshards.append(tmp_path / "out", input=more, progress=appended.append)
    assert {each.generation for each in appended} == {2}

    def fail(status: Status) -> None:
        raise EOFError("the user's own error")

    with pytest.raises(EOFError, match="the user's own error"):
        fineshards.build(input=sample, output=tmp_path / "other", progress=fail)
    again = fineshards.build(input=sample, output=tmp_path / "other")
    assert again.totals() == manifest.totals()


def test_progress_is_a_flag_or_a_function(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="progress is 'yes'; give True, False or a function"):
        fineshards.build(input="a", output=tmp_path, progress="yes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Did you mean progress"):
        fineshards.append(tmp_path, input="a", progres=True)


@pytest.mark.long
def test_progress_is_printed_as_lines_without_a_terminal(sample: Path, tmp_path: Path) -> None:
    program = "import sys, fineshards\nfineshards.build(input=sys.argv[1], output=sys.argv[2], {})"
    done = run_program(program.format("progress=True"), sample, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "read 1 file (1 block)"
    assert done.stdout.splitlines()[-1] == "wrote the manifest"
    quiet = run_program(program.format("progress=False"), sample, tmp_path / "quiet")
    assert (quiet.stdout, quiet.stderr) == ("", "")


@pytest.mark.long
def test_functions_say_what_commands_say(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fineshards.cli.cli import main

    def said(*command: object) -> Any:
        capsys.readouterr()
        assert main([*map(str, command), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    out = tmp_path / "out"
    fineshards.build(input=sample, output=out, shard_tokens=50_000)
    training = {"seed": 3, "batch_size": 4, "sequence_length": 256}
    flags = [f"--{name}={value}" for name, value in training.items()]
    step = fineshards.explain(out, step=5, **training)  # type: ignore[arg-type]
    assert said("explain", out, "--step=5", *flags) == plain(step)
    document = fineshards.explain(out, document=7, **training)  # type: ignore[arg-type]
    assert said("explain", out, "--document=7", *flags)["documents"] == plain(document)
    loader = fineshards.BatchLoader(TokenDataset(out, sequence_length=256), 4, 3)
    for options, said_of_it in (
        ({"document": "3"}, "--document is '3'"),
        ({"id": 3}, "--id is 3"),
        ({"state": 5}, "--state is 5"),
        ({"step": 1, "document": 2}, "one of step, document and id"),
        (training, "give --step"),
    ):
        with pytest.raises(UsageError, match=said_of_it):
            fineshards.explain(out, **options)  # type: ignore[arg-type]
    state = loader.state_dict(6)
    assert plain(fineshards.explain(out, state=state)) == plain(step)
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert plain(fineshards.explain(str(out), state=tmp_path / "state.json")) == plain(step)

    where = "length(text) > 1000"
    checked = plain(fineshards.recipe_check(input=sample, where=where, examples=1))
    told = said("recipe", "check", f"--where={where}", "--input", sample, "--examples=1")
    for each in (*checked["steps"], *told["steps"]):
        each.pop("seconds")
    assert told == checked
    other = shutil.copy(sample, tmp_path / "other.parquet")
    grown = fineshards.estimate(input=other, output=out)
    assert grown.repeats == 1063


@pytest.mark.long
def test_a_dataset_gives_its_documents_as_they_were_in_the_input(
    sample: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fineshards.build(input=sample, output=out, shard_tokens=50_000, id_column="id")
    splits = {name: TokenDataset(out, name, sequence_length=64) for name in ("test", "train")}
    documents = [each for split in splits.values() for each in split.all_documents()]
    assert [each.number for each in documents] == list(range(1063))
    rows = pq.read_table(sample).to_pylist()
    for each in documents:
        assert (each.file, each.id) == (str(sample), rows[each.row]["id"])
        assert each.text == rows[each.row]["text"]
    train = pickle.loads(pickle.dumps(splits["train"]))
    one = train.document(5)
    assert (one.text, one.tokens.tolist()) == (documents[5].text, documents[5].tokens.tolist())
    assert train.decode(one.tokens) == one.text
    for tokens in ([-1], [100_270], [100_277], [0.5], [[1]]):
        with pytest.raises(UsageError, match=r"not a token|not in the vocabulary|one dimension"):
            train.decode(tokens)
    more = tmp_path / "more.jsonl"
    lines = [json.dumps({"id": str(n), "text": f"text {n} " * 50}) for n in range(40)]
    more.write_text("\n".join(lines))
    fineshards.append(out, input=more)
    added = TokenDataset(out, sequence_length=64, after_generation=1)
    (first, *_) = whole = list(added.all_documents())
    assert (first.file, whole[-1].file) == (str(sample), str(more))
    assert len(whole) <= 41
    for number in (-1, 1063):
        with pytest.raises((IndexError, UsageError), match=f"{number:,}"):
            train.document(number)
    fineshards.redact(out, documents=[5])
    assert TokenDataset(out, "test", sequence_length=64).document(5).text == ""
    assert train.document(6).text == documents[6].text


@pytest.mark.long
def test_what_is_read_says_in_a_line_what_it_is(sample: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fineshards.build(input=sample, output=out, shard_tokens=100_000, test_shards=1, statistics=True)
    stats = fineshards.stats(out)
    assert repr(stats) == f"Stats({str(out)!r}): {len(stats.counts)} counts; print shows them"
    assert str(stats).splitlines() == describe_stats(stats)
    train = TokenDataset(out, sequence_length=1024)
    assert repr(train) == (
        f"TokenDataset({str(out)!r}, 'train', sequence_length=1024): 552 samples, 565,971 tokens"
    )
    mixture = fineshards.Mixture({"web": (train, 3), "code": (train, 1)}, exhausted="stop")
    assert repr(mixture) == f"Mixture('web': 0.75, 'code': 0.25): {len(mixture)} draws"
    loader = fineshards.BatchLoader(mixture, 8, 5, 1, 2)
    next(loader)
    assert repr(loader) == (
        "BatchLoader at step 1: batches of 8 samples of 1,024 tokens, shuffled by seed 5, "
        f"rank 1 of 2, from {mixture!r}"
    )


FUNCTION = """
def is_long(document):
    return len(document["text"].split()) >= 50


def is_in(document, dumps):
    return document["dump"] in dumps
"""


@pytest.mark.long
def test_a_recipe_of_objects_is_that_of_its_file(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "functions_of_a_test.py").write_text(FUNCTION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    functions = import_module("functions_of_a_test")
    dumps = ["LOCAL-lo_help", "LOCAL-gnome_help_en"]
    steps = [
        Length(min_chars=500),
        Exact("normalized", within="file"),
        MinHash(verify="none", threshold=0.5),
        GopherQuality(min_doc_words=None, min_stop_words=None),
        Regex('a "quote"\n'),
        functions.is_long,
        UserFunction(functions.is_in, ("dump",), {"dumps": dumps}),
    ]
    build = {"shard_tokens": 20_000, "shuffle_seed": None, "test_fraction": Fraction(1, 50)}
    recipe = Recipe(steps, build, "for a test")
    (tmp_path / "recipe.toml").write_text(
        """
        build = { shard_tokens = 20_000, test_fraction = "0.02" }
        [[steps]]
        use = "length"
        min_chars = 500
        [[steps]]
        use = "exact"
        by = "normalized"
        within = "file"
        [[steps]]
        use = "minhash"
        verify = "none"
        threshold = 0.5
        [[steps]]
        use = "gopher_quality"
        min_doc_words = false
        min_stop_words = false
        [[steps]]
        use = "regex"
        regex_exp = "a \\"quote\\"\\n"
        [[steps]]
        use = "functions_of_a_test:is_long"
        [[steps]]
        use = "functions_of_a_test:is_in"
        columns = ["dump"]
        dumps = ["LOCAL-lo_help", "LOCAL-gnome_help_en"]
        """
    )
    made = fineshards.build(input=sample, output=tmp_path / "a", recipe=recipe)
    read = fineshards.build(input=sample, output=tmp_path / "b", recipe=tmp_path / "recipe.toml")
    assert made == read
    jobs = [(tmp_path / name / "metadata/job.json").read_bytes() for name in "ab"]
    assert jobs[0] == jobs[1]
    assert 0 < made.totals()["documents"] < 1063


def test_an_edited_function_decides_as_its_file_is(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "edited_by_a_test.py"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module.write_text("LEAST = 1000\ndef keep(document): return len(document['text']) > LEAST\n")
    recipe = Recipe([import_module("edited_by_a_test").keep])
    kept = [fineshards.recipe_check(input=sample, recipe=recipe).steps[0].kept]
    module.write_text(module.read_text().replace("1000", "20000"))
    kept += [fineshards.recipe_check(input=sample, recipe=recipe).steps[0].kept]
    manifest = fineshards.build(input=sample, output=tmp_path / "out", recipe=recipe)
    assert (kept, manifest.totals()["documents"]) == ([602, 2], 2)
    assert fineshards.verify(tmp_path / "out", sample="100%").problems == []


def test_what_is_no_recipe_is_refused() -> None:
    for steps, said in (
        ([3], "3 is not a step: give a function, or one of fineshards"),
        ([lambda document: True], "workers cannot import"),
    ):
        with pytest.raises(UsageError, match=said):
            Recipe(steps)
    with pytest.raises(UsageError, match=r"recipe is \[1\]; give a file, a name or"):
        fineshards.build(input="a", output="b", recipe=[1])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"the recipe: unknown key 'step'"):
        fineshards.build(input="a", output="b", recipe="step = 1\n")
    assert {"MinHash", "GopherQuality"} < set(dir(steps_of_recipes))
    for wrong in (Length(min_chars=3), 5):
        with pytest.raises(UsageError, match="takes a list of steps"):
            Recipe(wrong)  # type: ignore[arg-type]
    for parameters in ({"x": None}, {1: 2}, {"x": {"a"}}, {"x": Path("a")}):
        recipe = Recipe([UserFunction("builtins:bool", (), parameters)])
        with pytest.raises(UsageError, match="a value that a recipe file cannot have"):
            fineshards.build(input="a", output="b", recipe=recipe)
    for name in ("columns", "batch"):
        with pytest.raises(UsageError, match=f"expected others than {name}, which are arguments"):
            UserFunction("builtins:bool", (), {name: 3})
    with pytest.raises(AttributeError, match="NoSuchStep"):
        _ = steps_of_recipes.NoSuchStep


def plain(found: Any) -> Any:
    """What JSON makes of dataclasses."""
    return json.loads(json.dumps(found, default=asdict))


def test_fractions_that_are_the_same_are_one_job() -> None:
    given = [0.01, "0.01", "0.010", "1/100", np.float64(0.01), Decimal("0.01"), None]
    assert {BuildConfig(input="a", output="b", test_fraction=f).test_share for f in given} == {
        "1/100"
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_shards": 1, "split_key": "id"}, "--split_key goes with --test_fraction"),
        ({"split_key": "url"}, "must be text, id, host, row or column:NAME, got 'url'"),
        ({"split_key": "column:"}, "must be text, id, host, row or column:NAME"),
        ({"split_key": 1}, "must be text"),
        ({"test_fraction": 1e-10}, "must be 0 or at least 1/4294967296"),
    ],
)
def test_a_split_that_cannot_be_meant_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BuildConfig(input="a", output="b", **options)


def test_a_config_can_be_changed_and_takes_integers_of_numpy() -> None:
    config = BuildConfig(input=None, dataset="a", output="b", shard_tokens=np.int64(7))
    assert type(config.shard_tokens) is int
    assert replace(config, test_shards=2) == BuildConfig(
        dataset="a", output="b", shard_tokens=7, test_shards=2
    )


def test_a_source_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\*.parquet: no file matches"):
        fineshards.build(input=tmp_path / "nothing*.parquet", output=tmp_path / "out")


def test_every_public_name_exists_and_has_a_docstring() -> None:
    assert set(fineshards.__all__) <= set(dir(fineshards))
    for name in fineshards.__all__:
        value = getattr(fineshards, name)
        assert name == "__version__" or value.__doc__
    assert issubclass(InputError, fineshards.FineshardsError)
    with pytest.raises(AttributeError, match="has no attribute 'tokens'"):
        _ = fineshards.tokens


@pytest.mark.parametrize("digits", [41, 3000])
def test_a_fraction_that_no_record_holds_is_refused_at_launch(
    sample: Path, tmp_path: Path, digits: int
) -> None:
    with pytest.raises(UsageError, match="has more than 40 digits above or below the line"):
        fineshards.build(input=sample, output=tmp_path / "out", test_fraction="0." + "3" * digits)
    assert not (tmp_path / "out").exists()
