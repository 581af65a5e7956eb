"""Reports: their numbers are those of the files, and their bytes depend on the dataset alone."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from lxml import html
from support import growing
from support.hostile_rows import ATTACK
from support.reported import FLAGS, KINDS, figure, lengths_in_tables, rows_of, words_of, written

import fineshards
from fineshards.cli.cli import main
from fineshards.reports import report_contents
from fineshards.shards.dataset_files import Dataset
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_the_files(
    built: Callable[[str], Path], kind: str, tmp_path: Path
) -> None:
    dataset = built(kind)
    page = html.fromstring(written(dataset, tmp_path / "report.html"))
    shards = {
        path.relative_to(dataset).as_posix(): np.load(path)
        for split in ("test", "train")
        for path in sorted((dataset / split).glob("*.npy"))
    }
    found = lengths_in_tables(dataset, kind == "first shards are test")
    for split, *row in rows_of(page, "splits"):
        tokens = [len(each) for name, each in shards.items() if name.startswith(split)]
        assert (row[2], row[5]) == (str(sum(tokens)), str(len(tokens)))
    assert sum(int(row[1]) for row in rows_of(page, "splits")) == len(found)
    figures = dict(
        zip(*(page.xpath(f"//header//{each}/text()") for each in ("dt", "dd")), strict=True)
    )
    assert figures["Documents"] == f"{len(found):,}"
    assert figures["Tokens"] == f"{sum(found):,}"
    assert figures["Median length"] == f"{found[(len(found) - 1) // 2]:,} tokens"
    *_, last = fits = rows_of(page, "lengths", 1)
    for length, count, _, tokens, _ in fits:
        fitting = [each for each in found if each <= int(length)]
        assert (int(count), int(tokens)) == (len(fitting), sum(fitting))
    assert int(last[1]) == len(found)
    for bin_, count, _, _, tokens, *_ in rows_of(page, "lengths"):
        first, _, most = bin_.partition(" to ")
        inside = [each for each in found if int(first) <= each <= int(most)]
        assert (int(count), int(tokens)) == (len(inside), sum(inside))
    assert sum(int(row[1]) for row in rows_of(page, "lengths")) == len(found)
    by_file = [row[2:4] for row in rows_of(page, "sources")]
    assert sum(int(count) for count, _ in by_file) == len(found)
    assert sum(int(tokens) for _, tokens in by_file) == sum(found)
    assert "Bytes of text" in words_of(page, "sources")
    compared = Manifest.load_finished(open_storage(str(dataset))).counts().compared
    said = words_of(page, "exactness")
    assert f"of these {len(found)} documents it chose {compared or 'none'}." in said
    assert ("A difference would have ended" in said) is (compared > 0)
    generations = kind == "grown and redacted"
    assert bool(page.xpath("//section[@id='generations']")) == generations
    if generations:
        assert [row[-1] for row in rows_of(page, "generations")] == ["0", "0", "2"]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_elsewhere_has_the_same_report(
    built: Callable[[str], Path], kind: str, tmp_path: Path
) -> None:
    page = written(built(kind), tmp_path / "report.html")
    copy = shutil.copytree(built(kind), tmp_path / "another place/out")
    assert written(copy, tmp_path / "again.html") == page
    assert b"<h1>out</h1>" in page
    assert str(built(kind)).encode() not in page


def test_an_earlier_generation_has_the_report_that_it_had(tmp_path: Path) -> None:
    first, second = growing.write_parts(tmp_path, growing.made_up_rows(6, 30), 15, "jsonl")
    growing.build(tmp_path / "out", first, *FLAGS, "--test_fraction=0.3")
    before = written(tmp_path / "out", tmp_path / "before.html")
    growing.append(tmp_path / "out", second)
    assert written(tmp_path / "out", tmp_path / "after.html", generation=1) == before
    assert written(tmp_path / "out", tmp_path / "after.html") != before
    manifest = Manifest.load_finished(open_storage(str(tmp_path / "out")))
    # The first document and the last one, of which the first generation has one.
    last = manifest.totals["documents"] - 1
    assert main(["redact", str(tmp_path / "out"), "--documents", "0", str(last)]) == 0
    for generation in (1, 2):
        page = written(tmp_path / "out", tmp_path / "after.html", generation=generation)
        manifest = Manifest.load_finished(open_storage(str(tmp_path / "out")), generation)
        assert figure(html.fromstring(page), "Tokens") == f"{manifest.totals['tokens']:,}"


def test_a_title_is_the_heading_and_changes_nothing_else(
    built: Callable[[str], Path], tmp_path: Path
) -> None:
    plain = written(built("by document"), tmp_path / "report.html")
    titled = written(built("by document"), tmp_path / "report.html", title="Our <web>")
    assert b"<h1>Our &lt;web&gt;</h1>" in titled
    assert titled.partition(b"</h1>")[2] == plain.partition(b"</h1>")[2]


def test_what_the_recipe_dropped_is_counted(hostile: Path, tmp_path: Path) -> None:
    first = written(hostile, tmp_path / "report.html")
    page = html.fromstring(first)
    dropped: Counter[int] = Counter()
    for path in (hostile / "metadata/decisions").iterdir():
        dropped.update(pq.read_table(path)["step"].to_pylist())
    assert [int(row[2]) for row in rows_of(page, "recipe")] == [dropped[0], dropped[1]]
    assert rows_of(page, "recipe")[-1][4] == page.xpath("//header//dd")[1].text_content()
    moved = (hostile.parent / "in<put>").rename(tmp_path / "gone")
    try:
        assert written(hostile, tmp_path / "again.html") == first
    finally:
        moved.rename(hostile.parent / "in<put>")


def test_nothing_from_data_becomes_markup(hostile: Path, tmp_path: Path) -> None:
    page = html.fromstring(written(hostile, tmp_path / "report.html"))
    allowed = {"class", "id", "role", "dir", "tabindex", "scope", "href", "value", "max"}
    allowed.add("title")
    body = page.find("body")
    for element in body.iter():
        if isinstance(element.tag, str):
            assert element.tag not in ("img", "i", "link", "style", "iframe", "script")
            names = {name for name in element.attrib if not name.startswith("aria-")}
            assert names <= allowed
    links = body.xpath("//a/@href")
    assert all(link.startswith("#") for link in links)
    seen = body.text_content()
    assert ATTACK in seen
    assert "\\x1b[2J" in seen
    assert not set(seen) & set("\x00\x1b\x07\u202e\u2028")


def test_lists_end_and_say_so(
    built: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = built("by document")
    whole = Manifest.load_finished(open_storage(str(dataset)))
    monkeypatch.setattr(report_contents, "MOST_FILES", 1)
    monkeypatch.setattr(report_contents, "MOST_TABLES", 3)
    page = html.fromstring(written(dataset, tmp_path / "report.html"))
    names = [shard.name for shard in whole.shards]
    assert len(names) > 6
    assert len(rows_of(page, "sources")) == 1
    assert "shown are the 1 with the most" in words_of(page, "sources")
    said = words_of(page, "lengths")
    assert f"in 3 of the {len(names)} shards, which a hash chose" in said
    opened = Dataset.open(open_storage(str(dataset)))
    sample, every = report_contents.lengths_of(opened), lengths_in_tables(dataset, one_stream=False)
    assert 0 < sample.documents < len(every)
    assert {sample.shortest, sample.median, sample.longest} <= set(every)


def test_a_report_of_a_damaged_dataset_shows_what_is_left(
    built: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = shutil.copytree(built("no test"), tmp_path / "out")
    for shard in (dataset / "train").iterdir():
        shard.unlink()
    output = tmp_path / "report.html"
    page = html.fromstring(written(dataset, output))
    assert "or are damaged" in words_of(page, "documents")
    output.unlink()
    table = next((dataset / "metadata/documents").iterdir())
    table.write_bytes(table.read_bytes()[:-1])
    capsys.readouterr()  # the dataset may have been built just now
    assert main(["report", str(dataset), f"--output={output}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "fineshards repair" in line
    assert "overwrite" not in line
    assert not output.exists()


def test_long_values_are_shortened(tmp_path: Path) -> None:
    rows = [
        {"text": f"text {number}", "id": f"{number}" * 20_000, "dump": f"{number}" * 20_000}
        for number in range(10, 30)
    ]
    source = growing.write_rows(tmp_path / "a.jsonl", rows)
    growing.build(tmp_path / "out", source, "--test_fraction=0")
    plain = html.fromstring(written(tmp_path / "out", tmp_path / "report.html"))
    longest = max(len(text) for text in plain.find("body").itertext() if "10" * 20 in text)
    assert 250 <= longest < 400
    assert "28" * 20_000 not in plain.text_content()


# By file: documents that step 1 drops, that step 2 drops, and that both keep.
NEARLY_ALL = {"a": (91, 0, 9), "b": (200, 93, 7), "c": (0, 500, 0), "d": (93, 0, 7)}
NOT_ALL = {"e": (90, 0, 10), "f": (99, 0, 0), "g": (101, 90, 9), "h": (50, 45, 5)}


def test_a_source_of_which_a_step_drops_nearly_all_is_warned_of(tmp_path: Path) -> None:
    texts = ("x", "a longer text", "as it is")
    for name, counts in (NEARLY_ALL | NOT_ALL).items():
        rows = [{"text": t} for t, count in zip(texts, counts, strict=True) for _ in range(count)]
        growing.write_rows(tmp_path / f"in/{name}.jsonl", rows)
    steps = '{use = "length", min_chars = 5}, {use = "length", max_chars = 10}'
    (tmp_path / "recipe.toml").write_text(f"steps = [{steps}]")

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "fineshards", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    folder = str(tmp_path / "out")
    flags = (f"--input={tmp_path}/in/*", f"--recipe={tmp_path}/recipe.toml", "--workers=2")
    built = run("build", *flags, f"--output={folder}").splitlines()
    lines = [
        f"step {step} length dropped {of} of {tmp_path}/in/{file}.jsonl"
        for step, of, file in (
            (2, "500 of 500 documents (100.00 %)", "c"),
            (2, "93 of 100 documents (93.00 %)", "b"),
            (1, "93 of 100 documents (93.00 %)", "d"),
        )
    ]
    lines.append("and 1 more, each over 90 %")
    assert built[-4:] == [f"warning: {line}" for line in lines]
    assert [line.strip() for line in run("stats", folder).splitlines() if "warning" in line] == (
        built[-4:]
    )
    assert (
        json.loads(run("build", *flags, f"--output={folder}", "--json"))["step_warnings"] == lines
    )
    of_step = fineshards.stats(folder, step=1).warnings
    assert [line.partition("/in/")[2] for line in of_step] == ["d.jsonl", "a.jsonl"]
    page = html.fromstring(written(Path(folder), tmp_path / "r.html"))
    assert page.xpath("//section[@id='recipe']//p[@class='note']/text()")[:4] == lines


def test_a_dump_of_which_a_step_drops_nearly_all_is_warned_of(tmp_path: Path) -> None:
    """In no file it is most of the documents."""
    for name in "ab":
        texts = {"X": ["same"] * 140 + ["x"] * 10, "Y": [f"{name} {n}" for n in range(200)]}
        rows = [{"text": text, "dump": dump} for dump, of in texts.items() for text in of]
        growing.write_rows(tmp_path / f"{name}.jsonl", [*rows, {"text": "x"}])
    steps = '{use = "length", min_chars = 2}, {use = "exact"}, {use = "length", max_chars = 9}'
    (tmp_path / "recipe.toml").write_text(f"steps = [{steps}]")
    folder = tmp_path / "out"
    growing.build(folder, *tmp_path.glob("*.jsonl"), f"--recipe={tmp_path}/recipe.toml")
    (line,) = fineshards.stats(folder).warnings
    assert line == "step 2 exact dropped 279 of 280 documents (99.64 %) of dump X"
    assert fineshards.verify(folder, sample=100).ok


def test_a_step_shows_what_it_dropped_with_the_bytes_of_stats(tmp_path: Path) -> None:
    """A step before rewrites the texts, so that the source has other bytes."""
    texts = [f"Text number {number}.\n***\n{'Long. ' * number}" for number in range(1, 91)]
    growing.write_rows(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    (tmp_path / "recipe.toml").write_text(
        'steps = [{use = "symbol_lines"}, {use = "length", min_chars = 300}]'
    )
    flags = [f"--recipe={tmp_path}/recipe.toml", "--test_fraction=0"]
    growing.build(tmp_path / "out", tmp_path / "a.jsonl", *flags)
    recipe = words_of(html.fromstring(written(tmp_path / "out", tmp_path / "r.html")), "recipe")
    (found,) = (
        each for each in fineshards.stats(tmp_path / "out", step=2).counts if each.what == "dropped"
    )
    (of_source,) = Manifest.load_finished(open_storage(f"{tmp_path}/out")).counts().dropped
    assert of_source.documents == found.documents > 0
    assert of_source.text_bytes == found.bytes + len("***\n") * found.documents
    assert f"{found.bytes:,}" in recipe
    assert f"{of_source.text_bytes:,}" not in recipe
