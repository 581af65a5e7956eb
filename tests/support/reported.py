"""Datasets to report on, and what their reports say."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from lxml import html

import fineshards
from fineshards.cli.cli import main
from support import growing
from support.tokenizer_files import path_of

FLAGS = ["--shard_tokens=700", "--block_bytes=1"]


def two_files(folder: Path, *flags: str) -> None:
    files = growing.write_parts(folder, growing.made_up_rows(3, 60), 30)
    growing.build(folder / "out", *files, *FLAGS, *flags)


def grow_and_redact(folder: Path) -> None:
    first, second = growing.write_parts(folder, growing.made_up_rows(5, 60), 30)
    growing.build(folder / "out", first, *FLAGS, "--test_fraction=0.3")
    growing.append(folder / "out", second)
    assert main(["redact", str(folder / "out"), "--documents", "3", "4"]) == 0


def from_test_file(folder: Path) -> None:
    """One document in test, so that the last of test has the number of the first of train."""
    rows = growing.made_up_rows(5, 41)
    train = growing.write_rows(folder / "train.parquet", rows[1:])
    test = growing.write_rows(folder / "test.parquet", rows[:1])
    growing.build(folder / "out", train, *FLAGS, f"--test_input={test}")


KINDS: dict[str, Callable[[Path], None]] = {
    "by document": lambda folder: two_files(folder, "--test_fraction=0.3"),
    "first shards are test": lambda folder: two_files(folder, "--test_shards=3"),
    "no test": lambda folder: two_files(folder, "--test_fraction=0"),
    "shuffled uint16": lambda folder: two_files(
        folder,
        "--shuffle_seed=5",
        "--dtype=uint16",
        f"--tokenizer={path_of('gpt2')}",
        "--statistics",
    ),
    "grown and redacted": grow_and_redact,
    "test files": from_test_file,
}


def written(dataset: Path | str, output: Path, **flags: object) -> bytes:
    fineshards.report(dataset, output=output, **flags)
    return output.read_bytes()


def rows_of(page: html.HtmlElement, section: str, number: int = 0) -> list[list[str]]:
    """The cells of a table of a section, without the separators of thousands."""
    table = page.get_element_by_id(section).findall(".//table")[number]
    return [
        [cell.text_content().replace(",", "") for cell in row]
        for row in table.findall(".//tbody/tr")
    ]


def words_of(page: html.HtmlElement, section: str) -> str:
    """What a section says, as a browser breaks its lines anew."""
    return " ".join(page.get_element_by_id(section).text_content().split())


def figure(page: html.HtmlElement, name: str) -> str:
    (found,) = page.xpath(f"//header//dt[text() = '{name}']/following-sibling::dd/text()")
    return str(found)


def lengths_in_tables(dataset: Path, one_stream: bool) -> list[int]:
    """The lengths of all documents, added up over the pieces in the document tables."""
    found: Counter[tuple[str, int]] = Counter()
    for path in (dataset / "metadata/documents").glob("*.parquet"):
        split = "all" if one_stream else path.name.partition("_")[0]
        for row in pq.read_table(path, columns=["document", "length"]).to_pylist():
            found[split, row["document"]] += row["length"]
    return sorted(found.values())
