"""The launch of an import: its token files, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from fineshards.config import BuildConfig
from fineshards.errors import UsageError
from fineshards.shards.job.import_record import Imported
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import Columns, Tokenizer
from fineshards.shards.layout import FILES, HASH_VERSION, SplitRule
from fineshards.sources.formats.token_finding import find_token_files
from fineshards.sources.formats.token_streams import with_continuations
from fineshards.sources.places.schemes import imports_libraries
from fineshards.sources.reading import check_head
from fineshards.worker.fresh_interpreter import call_apart


def describe_import(config: BuildConfig, tokenizer: Tokenizer) -> Imported | None:
    """How the token files of a configuration are read; None if it has texts."""
    if config.token_layout is None:
        return None
    assert config.eot_side is not None
    return Imported(
        kind=config.token_layout,
        eot_side=config.eot_side,
        eot=tokenizer.eot,
        vocabulary=tokenizer.size,
        dtype=config.source_dtype,
    )


class FoundInput(NamedTuple):
    """The files of an input in order, and how the user named them, for the manifest.

    test_files: how many of them, the first ones, are the test split by --test_input.
    """

    files: list[SourceFile]
    origin: tuple[tuple[str, str], ...]
    test_files: int = 0


def find_tokens(config: BuildConfig, kind: str) -> FoundInput:
    """Returns the token files, those of the test split first."""
    test = _find(kind, config.test_patterns, "--test_input")
    train = _find(kind, config.patterns, "--input")
    twice = {file.path for file in test} & {file.path for file in train}
    if twice:
        raise UsageError(
            f"{min(twice)} is matched by --input and by --test_input; its documents would be in "
            "both splits. Match it only once."
        )
    files = [replace(file, index=index) for index, file in enumerate([*test, *train])]
    origin = {"input": " ".join(config.patterns), "test_input": " ".join(config.test_patterns)}
    named = tuple((name, value) for name, value in origin.items() if value)
    return FoundInput(files, named, len(test))


def _find(kind: str, patterns: Sequence[str], flag: str) -> list[SourceFile]:
    if any(map(imports_libraries, patterns)):
        return call_apart(find_token_files, kind, patterns, flag)
    return find_token_files(kind, patterns, flag)


def continued(files: Sequence[SourceFile], test_files: int, columns: Columns) -> list[SourceFile]:
    """The files of each split with those that their last documents go on in.

    Raises InputError if the first file is not of the layout, before a runner starts.
    """
    if any(imports_libraries(file.path) for file in files):
        return call_apart(_continued, files, test_files, columns)
    return _continued(files, test_files, columns)


def _continued(files: Sequence[SourceFile], test_files: int, columns: Columns) -> list[SourceFile]:
    imported = columns.imported
    assert imported is not None
    for file in files[:1]:
        check_head(file, columns)
    test, train = files[:test_files], files[test_files:]
    return [*with_continuations(test, imported), *with_continuations(train, imported)]


def rule_of_test_files(test_files: int) -> SplitRule:
    """The split of an import by --test_input, whose files are the first."""
    # Of the two numbers that stand for hashes, 0 and the largest, a half chooses the first.
    return SplitRule("1/2", None, f"{FILES}:{test_files}", HASH_VERSION)
