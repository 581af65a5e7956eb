"""`import fineshards`: the public names, and the state of the process after a build."""

import inspect
import json
import pickle
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.fresh_interpreter import run_program
from support.oracle import oracle, read_texts, shards_in

import fineshards
from fineshards import TokenDataset
from fineshards.errors import InputError, UsageError
from fineshards.inspection.stats import describe_stats

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
assert manifest.totals["documents"] == 1063
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


def test_help_describes_every_option() -> None:
    described = fineshards.build.__doc__ or ""
    options = inspect.signature(fineshards.build).parameters
    missing = set(options) - {"beam_args"} - set(re.findall(r"^        (\w+): ", described, re.M))
    assert "progress" in options
    assert missing == set()


def test_completion_offers_public_names_alone() -> None:
    assert dir(fineshards) == sorted(fineshards.__all__)


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
    assert told == checked


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
        assert (each.file, each.id) == (sample.name, rows[each.row]["id"])
        assert each.text == rows[each.row]["text"]
    train = pickle.loads(pickle.dumps(splits["train"]))
    one = train.document(500)
    assert (one.text, one.tokens.tolist()) == (documents[500].text, documents[500].tokens.tolist())
    # A model trained on a test document by mistake would be judged by it.
    first = len(list(splits["test"].all_documents()))
    with pytest.raises(UsageError) as refusal:
        train.document(5)
    assert str(refusal.value) == (
        f"document 5 is not in the train split, which has documents {first} to 1062. "
        "Open the other split to read it."
    )
    assert splits["test"].document(5).text == documents[5].text
    assert repr(one).startswith(f"WholeDocument: number 500 ({sample.name}, row {one.row}), ")
    assert len(one.text) > 200 > len(repr(one))
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
    assert (first.file, whole[-1].file) == (sample.name, more.name)
    assert len(whole) <= 41
    for number in (-1, 1063):
        with pytest.raises((IndexError, UsageError), match=f"{number:,}"):
            train.document(number)
    fineshards.redact(out, documents=[5])
    assert TokenDataset(out, "test", sequence_length=64).document(5).text == ""
    assert train.document(501).text == documents[501].text


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


def plain(found: Any) -> Any:
    """What JSON makes of dataclasses."""
    return json.loads(json.dumps(found, default=asdict))


def test_every_public_name_exists_and_has_a_docstring() -> None:
    assert set(fineshards.__all__) <= set(dir(fineshards))
    for name in fineshards.__all__:
        value = getattr(fineshards, name)
        assert name == "__version__" or value.__doc__
    assert issubclass(InputError, fineshards.FineshardsError)
    with pytest.raises(AttributeError, match="has no attribute 'tokens'"):
        _ = fineshards.tokens
