"""The input of a benchmark: its files, laid out in one folder, and how much text they hold.

Run as `python -m benchmarks.inputs FOLDER`, it prints the contents as JSON. It runs in a separate
process because the memory of the process that starts the contestants would be a minimum of theirs.
"""

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fineshards.errors import FineshardsError, InputError, UsageError
from fineshards.sources.files import find_files


@dataclass(frozen=True, slots=True)
class Contents:
    """What the input holds.

    files: number of files. bytes: their size. documents: rows with text. text_bytes: UTF-8 bytes of
    the text. empty: documents with an empty text, which some contestants leave out.
    """

    files: int
    bytes: int
    documents: int
    text_bytes: int
    empty: int


def lay_out(patterns: Sequence[str], repeat: int, folder: Path) -> list[str]:
    """Puts all matching files into a folder, `repeat` times, under new names; returns the names.

    The names sort in the order of the input. Files are hard links if possible, otherwise copies.
    Raises UsageError if nothing matches, or if a file is not parquet, the only format of the peers.
    """
    paths = [file.path for file in find_files(patterns)]
    for path in paths:
        if "://" in path or not path.endswith(".parquet"):
            raise UsageError(
                f"{path}: only local .parquet files can be measured; the peers read no others."
            )
    folder.mkdir()
    names = []
    for number, path in enumerate(paths * repeat):
        names.append(f"{number:05d}-{os.path.basename(path)}")
        _link_or_copy(path, folder / names[-1])
    return names


def _link_or_copy(source: str, target: Path) -> None:
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        # Another file system, or a file of another user.
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise FineshardsError(f"cannot copy {source}: {error.strerror}.") from error


def read_contents(folder: Path) -> Contents:
    """Counts the contents of the parquet files of a folder by reading them once.

    Afterwards they are in the page cache, as far as they fit. Raises InputError for a file that is
    damaged or has no column `text`.
    """
    paths = sorted(folder.glob("*.parquet"))
    # A repeated file is one file under many names.
    by_file: dict[int, Contents] = {}
    for path in paths:
        if path.stat().st_ino not in by_file:
            by_file[path.stat().st_ino] = _read_file(path)
    read = [by_file[path.stat().st_ino] for path in paths]
    return Contents(
        files=len(read),
        bytes=sum(file.bytes for file in read),
        documents=sum(file.documents for file in read),
        text_bytes=sum(file.text_bytes for file in read),
        empty=sum(file.empty for file in read),
    )


def _read_file(path: Path) -> Contents:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    # The whole file, for contestants that read more than the text.
    with path.open("rb") as whole, open(os.devnull, "wb") as nowhere:
        shutil.copyfileobj(whole, nowhere, 16 << 20)
    documents = text_bytes = empty = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["text"]):
                lengths = pc.binary_length(batch.column("text").drop_null())
                documents += len(lengths)
                text_bytes += pc.sum(lengths).as_py() or 0
                empty += pc.sum(pc.equal(lengths, 0)).as_py() or 0
    except (KeyError, pa.ArrowException) as error:
        raise InputError(f"{path.name}: not a parquet file with column text ({error}).") from error
    return Contents(1, path.stat().st_size, documents, text_bytes, empty)


def main(folder: Path) -> None:
    """Prints the contents of a folder; exits with a sentence if they cannot be read."""
    try:
        print(json.dumps(asdict(read_contents(folder))))
    except FineshardsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
