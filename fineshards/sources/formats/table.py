"""All formats of source files. A new one is a line here."""

from __future__ import annotations

from fineshards.sources.formats.arrow import Arrow
from fineshards.sources.formats.csv import Csv, Tsv
from fineshards.sources.formats.format import Format
from fineshards.sources.formats.jsonl import JsonLines
from fineshards.sources.formats.parquet import Parquet
from fineshards.sources.formats.text import Text
from fineshards.sources.formats.warc import Warc, Wet

# By the name that records have.
FORMATS: dict[str, Format] = {
    kind.name: kind
    for kind in (
        Parquet(),
        Arrow(),
        Warc(),
        Wet(),
        JsonLines(),
        Csv(),
        Tsv(),
        Text(),
    )
}
