"""Builds with a recipe: the shards, decisions and counts of one document at a time."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.curated import (
    Expected,
    Row,
    Steps,
    counts_in,
    curate,
    decisions_in,
    made_up_files,
    write_files,
    write_recipe,
)
from support.oracle import cut, files_in, shards_in
from support.tokenizer_files import oracle_documents, save, train

import fineshards
from fineshards.cli.cli import main
from fineshards.worker import comparing
from fineshards.worker.work import Work

pytestmark = pytest.mark.curation

SHARD_TOKENS = 500


def made_up(seed: int, counts: tuple[int, ...] = (40, 30, 35, 0)) -> list[list[Row]]:
    """Made-up files, of which the second has rows that cannot be read."""
    files = made_up_files(seed, counts)
    files[1].insert(5, None)
    files[1].append(None)
    return files


def of_2019(**parameters: Any) -> dict[str, Any]:
    """Other parameters for documents of a dump, as if it were their language."""
    tables = [{"label": "2019", **parameters}, {"label": "no such dump"}]
    return {"language_column": "dump", "per_language": tables}


# Filters, rewrites and keyed steps in every order.
RECIPES: dict[str, Steps] = {
    "a filter": [("length", {"min_chars": 60})],
    "a rewrite": [("symbol_lines", {})],
    "no keyed step": [
        ("symbol_lines", {}),
        ("sample", {"rate": 0.8}),
        ("pii", {}),
        ("where", {"sql": "text NOT LIKE '%river river%'"}),
    ],
    "keyed alone": [("exact", {})],
    "keyed steps in a row": [
        ("exact", {"by": "normalized"}),
        ("minhash", {"verify": "none"}),
        ("lines", {"min_doc_words": 4}),
        ("paragraphs", {"min_doc_words": 4}),
    ],
    "all kinds": [
        ("length", {"min_chars": 6}),
        ("exact", {}),
        ("symbol_lines", {}),
        ("minhash", {"n_grams": 3}),
        ("lines", {"min_doc_words": 3}),
        ("where", {"sql": "text NOT LIKE '%stone & stone%'"}),
        ("minhash", {"rule": "components", "seed": 5}),
    ],
    "in groups": [
        ("exact", {"by": "column:group", "within": "column:dump"}),
        ("exact", {"within": "column:dump"}),
        ("minhash", {"within": "file", "n_grams": 3, "threshold": 0.5}),
    ],
    "cuts first": [
        ("paragraphs", {"min_doc_words": 0}),
        ("lines", {"min_chars": 3, "min_doc_words": 0}),
        ("symbol_lines", {}),
        ("exact", {}),
    ],
    "passages": [
        ("passages", {"min_words": 6, "min_doc_words": 3}),
        ("symbol_lines", {}),
        ("passages", {"min_words": 4, "min_doc_words": 0, "within": "document"}),
    ],
    "components first": [
        ("minhash", {"rule": "components", "buckets": 30, "hashes_per_bucket": 3}),
        ("sentences", {"split_sentences": False, "min_doc_words": 5, "min_num_sentences": 1}),
        ("length", {"min_chars": 30}),
    ],
    "compared": [
        ("lines", {"min_doc_words": 3}),
        ("pii", {}),
        ("minhash", {"n_grams": 2, "buckets": 40, "hashes_per_bucket": 1, "threshold": 0.5}),
        ("minhash", {"rule": "components", "verify": "containment", "candidates": 1}),
    ],
    "by language": [
        ("length", {"min_chars": 30} | of_2019(min_chars=90) | {"max_chars": 400}),
        ("symbol_lines", of_2019(symbols_to_remove=["—", "…"])),
        ("minhash", {"n_grams": 3}),
        ("where", {"sql": "true"} | of_2019(sql='"group" < 25')),
    ],
    "columns": [
        ("exact", {"by": "column:group"}),
        ("where", {"sql": '"dump" = \'2019\' or "group" < 20'}),
    ],
}


def build(tmp: Path, files: list[list[Row]], steps: Steps, *flags: str) -> tuple[Path, Expected]:
    """Builds a dataset in `tmp/out`; returns it, and what it should be."""
    if not (tmp / "in").exists():
        write_files(tmp / "in", files)
    recipe = write_recipe(tmp / "recipe.toml", steps)
    given = [f"--input={tmp}/in/*", f"--recipe={recipe}", f"--shard_tokens={SHARD_TOKENS}"]
    assert main(["build", f"--output={tmp}/out", *given, "--max_bad_rows=2", *flags]) == 0
    return tmp / "out", curate(files, steps)


def check(output: Path, expected: Expected, shards: dict[str, bytes]) -> None:
    assert decisions_in(output, len(expected.files)) == expected.decisions
    for file, counts in enumerate(counts_in(output)):
        assert counts == expected.counts(file)
    assert shards_in(output) == shards


@pytest.mark.parametrize("name", RECIPES)
def test_shards_decisions_and_counts_are_those_of_one_document_at_a_time(
    name: str, tmp_path: Path
) -> None:
    flags = ["--test_fraction=0.2", "--block_bytes=1", "--memory_bytes=4000"]
    output, expected = build(tmp_path, made_up(1), RECIPES[name], *flags)
    if name != "a rewrite":
        assert sum(map(len, expected.decisions)) > 4
    check(output, expected, expected.shards(SHARD_TOKENS, "0.2"))


@pytest.mark.parametrize("seed", range(5))
def test_any_steps_in_any_order(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    choice = [
        ("length", {"min_chars": draw.choice([1, 50])}),
        ("symbol_lines", {"replace_char": draw.choice(["", "-"])}),
        ("ftfy", {}),
        ("where", {"sql": f"text NOT LIKE '{draw.choice(['%house%tree%', 'alpha%'])}'"}),
        ("sample", {"rate": 0.9, "seed": seed}),
        ("exact", {"by": draw.choice(["text", "normalized", "column:group"])}),
        (
            "minhash",
            {
                "rule": draw.choice(["earlier", "components"]),
                "verify": draw.choice(["none", "jaccard", "containment"]),
                "candidates": draw.choice([1, 2, 3]),
                "buckets": draw.choice([14, 50]),
                "hashes_per_bucket": draw.choice([1, 3]),
                "n_grams": 2,
            },
        ),
        ("lines", {"min_doc_words": 5, "min_chars": draw.choice([1, 25])}),
        ("paragraphs", {"min_doc_words": draw.choice([0, 9])}),
    ]
    steps = draw.sample(choice, draw.randint(3, 5))
    rule = draw.choice(["--test_fraction=0.3", "--test_shards=1"])
    shuffled = draw.random() < 0.5
    flags = [rule, f"--block_bytes={draw.choice([1, 2000, 10**9])}"]
    flags += ["--shuffle_seed=7"] if shuffled else []
    counts = tuple(draw.choice([0, 1, 9, 30, 50]) for _ in range(4))
    output, expected = build(tmp_path, made_up(seed, (20, *counts)), steps, *flags)
    fraction = None if rule == "--test_shards=1" else "0.3"
    seed_of_order = 7 if shuffled else None
    check(output, expected, expected.shards(SHARD_TOKENS, fraction, 1, seed_of_order))


def test_sixteen_bits(tmp_path: Path) -> None:
    files, steps = made_up(3), RECIPES["cuts first"]
    texts = [row["text"] for rows in files for row in rows if row and row["text"]]
    tokenizer = save(train("gpt2", texts, 1000), tmp_path / "mine.json")
    flags = [f"--tokenizer={tokenizer}", "--dtype=uint16", "--test_shards=0"]
    output, expected = build(tmp_path, files, steps, *flags)
    kept = [text for rows in expected.texts for text in rows if text is not None]
    stream = [
        token for tokens in oracle_documents(tokenizer, "<|endoftext|>", kept) for token in tokens
    ]
    assert shards_in(output) == cut(stream, SHARD_TOKENS, 0, "<u2")


# The same bytes of the whole dataset, however the work was done.

STEPS = RECIPES["all kinds"]
COMMON = ["--test_fraction=0.2", "--keep_keys"]
FILES = made_up(2)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sources and their dataset. Read-only."""
    folder = tmp_path_factory.mktemp("curated")
    output, expected = build(folder, FILES, _mild(STEPS), *COMMON)
    check(output, expected, expected.shards(SHARD_TOKENS, "0.2"))
    return folder


def _mild(steps: Steps) -> Steps:
    """Steps that a dataset may grow with."""
    return [(use, {"seed": 5} if "rule" in given else given) for use, given in steps]


def content_of(folder: Path, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """All files of a dataset; of records, what does not say how the work was cut."""
    found: dict[str, Any] = {}
    for name, content in files_in(folder).items():
        if name.startswith("checkpoints/") or name in (*but, "metadata/blocks.parquet"):
            continue
        found[name] = content
        if name in (
            "metadata/manifest.json",
            "metadata/job.json",
            "metadata/generations/0001.json",
        ):
            record = json.loads(content)
            for key in ("crc32c", "fingerprint", "metadata"):
                record.pop(key, None)
            for part in (record, record.get("settings", {}), record.get("totals", {})):
                part.pop("block_bytes", None)
                part.pop("blocks", None)
            for report in record.get("reports", ()):
                del report["blocks"]
            found[name] = record
    return found


@pytest.mark.parametrize(
    "flags",
    [
        ["--block_bytes=1", "--memory_bytes=300", "--workers=1"],
        ["--block_bytes=3000", "--memory_bytes=1500", "--direct_runner_bundle_repeat=2"],
        ["--block_bytes=100000", "--memory_bytes=100000"],
    ],
    ids=["64 ranges", "replayed", "one range"],
)
def test_the_work_may_be_cut_and_replayed(
    reference: Path, tmp_path: Path, flags: list[str]
) -> None:
    output = rebuild(reference, tmp_path, *flags)
    assert content_of(output) == content_of(reference / "out")


def rebuild(reference: Path, tmp_path: Path, *flags: str) -> Path:
    """The dataset again, in this process and without the pool."""
    given = [f"--input={reference}/in/*", f"--recipe={reference}/recipe.toml"]
    given += [f"--shard_tokens={SHARD_TOKENS}", "--max_bad_rows=2", *COMMON, *flags]
    assert main(["build", f"--output={tmp_path}/out", *given]) == 0
    return tmp_path / "out"


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_any_number_of_workers(reference: Path, tmp_path: Path, workers: int) -> None:
    fineshards.build(
        input=f"{reference}/in/*",
        recipe=reference / "recipe.toml",
        output=tmp_path / "out",
        shard_tokens=SHARD_TOKENS,
        test_fraction="0.2",
        keep_keys=True,
        max_bad_rows=2,
        workers=workers,
        block_bytes=2000,
        memory_bytes=5000,
    )
    assert content_of(tmp_path / "out") == content_of(reference / "out")


@pytest.mark.parametrize("flags", [["--memory_bytes=2000"], []])
def test_keys_may_cross_the_shuffle_as_bytes(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    """As they do on runners with a shuffle of their own."""
    of = Work.of
    monkeypatch.setattr(Work, "of", lambda *args, inline, **named: of(*args, inline=True, **named))
    output = rebuild(reference, tmp_path, *flags)
    assert content_of(output) == content_of(reference / "out")


def test_contents_may_be_read_in_many_parts(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of large files are, which would not fit into memory."""
    monkeypatch.setattr(comparing, "_MEMORY", 400)
    output = rebuild(reference, tmp_path, "--keep_checkpoints", "--block_bytes=1")
    assert content_of(output) == content_of(reference / "out")
    entry = min(output.glob("checkpoints/*/marks/*/00000-sets.json"))
    assert len(json.loads(entry.read_bytes())["ranges"]) > 3


def test_components_may_cross_the_shuffle_as_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = Work.of
    monkeypatch.setattr(Work, "of", lambda *args, inline, **named: of(*args, inline=True, **named))
    flags = ["--test_shards=1", "--memory_bytes=1000"]
    output, expected = build(tmp_path, FILES, RECIPES["components first"], *flags)
    check(output, expected, expected.shards(SHARD_TOKENS, None, 1))


def test_where_files_are_cut_decides_nothing_but_positions(tmp_path: Path) -> None:
    """The same rows in the same order, in other files."""
    rows = [row for of_file in made_up_files(4, (70,)) for row in of_file]
    steps: Steps = [("exact", {}), ("symbol_lines", {}), ("lines", {"min_doc_words": 3})]
    datasets = []
    for name, cuts in (("one", [70]), ("three", [1, 40, 70]), ("five", [7, 7, 20, 69, 70])):
        files = [rows[start:stop] for start, stop in zip([0, *cuts], cuts, strict=False)]
        folder = tmp_path / name
        folder.mkdir()
        output, _ = build(folder, files, steps, "--test_fraction=0.2")
        starts = [0, *cuts]
        decided = [
            (
                starts[file] + row,
                *rest[:3],
                None if rest[3] is None else starts[rest[3]] + rest[4],  # type: ignore[operator]
            )
            for file, decisions in enumerate(decisions_in(output, len(files)))
            for row, *rest in decisions
        ]
        datasets.append((shards_in(output), decided))
    assert datasets[0] == datasets[1] == datasets[2]
    assert len(datasets[0][1]) > 10


# Files and blocks of which nothing is left.


def rows_of(*texts: str | None) -> list[Row]:
    return [{"text": text, "id": None, "group": None, "dump": None} for text in texts]


def test_files_and_blocks_without_documents(tmp_path: Path) -> None:
    """Nothing but nulls, nothing but what is dropped in each stage, no rows at all."""
    long = [f"{word} house tree river alpha beta cloud {word}" for word in "abcdefghijkl"]
    files = [
        rows_of(*long),
        rows_of(None, None),
        rows_of("", "x"),
        rows_of(*long[:9]),
        [],
        rows_of(*["x"] * 10, "a new document of some words", *long),
        rows_of(*(f"{text} again" for text in long)),
    ]
    steps: Steps = [
        ("length", {"min_chars": 5}),
        ("exact", {}),
        ("minhash", {"n_grams": 3, "buckets": 20, "hashes_per_bucket": 1}),
        ("lines", {"min_chars": 1}),
    ]
    output, expected = build(tmp_path, files, steps, "--block_bytes=1", "--test_shards=0")
    check(output, expected, expected.shards(SHARD_TOKENS, None))
    assert [len([text for text in texts if text]) for texts in expected.texts][1:5] == [0, 0, 0, 0]


def test_the_last_lines_count_what_was_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(tmp_path / "in", [rows_of("one", "two", "one")])
    given = [f"--input={tmp_path}/in/*", "--dedup=exact", f"--output={tmp_path}/out"]
    assert main(["build", *given]) == 0
    assert ": 2 documents, 1 document dropped, 4 tokens in " in capsys.readouterr().out


def test_a_recipe_that_drops_everything_fails_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(tmp_path / "in", [rows_of("one", "two"), rows_of("three")])
    recipe = write_recipe(tmp_path / "r.toml", [("exact", {}), ("length", {"min_chars": 99})])
    given = [f"--input={tmp_path}/in/*", f"--recipe={recipe}", f"--output={tmp_path}/out"]
    assert main(["build", *given]) == 1
    (*_, line) = capsys.readouterr().err.splitlines()
    assert line.startswith("fineshards: ")
    assert (
        "the recipe leaves no documents: 3 rows, 3 of them dropped: 3 by step 2 (min_chars)."
        in line
    )
    assert not (tmp_path / "out/metadata/manifest.json").exists()
