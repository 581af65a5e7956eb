"""The job record: everything that decides the bytes of a dataset, and its fingerprint.

`metadata/job.json` is written at launch. The same command finds it and continues; another command
finds it and is refused with the difference named. Workers and the commands on a finished dataset
read the list of files from it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fineshards.errors import OutputError
from fineshards.shards.layout import SplitRule
from fineshards.shards.npy import DTYPES
from fineshards.shards.records import SourceFile, from_fields
from fineshards.storage.base import Storage

JOB_NAME = "metadata/job.json"
VOCABULARY_NAME = "metadata/vocabulary.tiktoken"
TOKENIZER_JSON_NAME = "metadata/tokenizer.json"

# Kinds of tokenizers, and the file of each that is stored with a dataset.
TIKTOKEN = "tiktoken"
HUGGINGFACE = "huggingface"
TOKENIZER_FILES = {TIKTOKEN: VOCABULARY_NAME, HUGGINGFACE: TOKENIZER_JSON_NAME}

# Raised when the same input and options would give other bytes, blocks or checkpoints.
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns that are read.

    A file without the id column is fine unless the user named it (`id_required`).
    """

    text: str
    id: str
    id_required: bool


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer without its vocabulary, which lies in `file`.

    kind: `tiktoken` (an encoding of tiktoken, a rank file) or `huggingface` (a tokenizer.json).
    name: of the encoding, or of the file that the user gave, without folders.
    vocabulary_sha256: of the stored file. pattern: the regular expression that splits text, or
    the parts of a tokenizer.json that do.
    special_tokens: sorted (text, id) pairs. eot: id that starts every document.
    size: one more than the largest id. golden_sha256: of the tokens of the golden texts.
    """

    kind: str
    name: str
    vocabulary_sha256: str
    pattern: str
    special_tokens: tuple[tuple[str, int], ...]
    eot: int
    size: int
    golden_sha256: str

    @property
    def file(self) -> str:
        """Where the vocabulary lies, below the output folder."""
        return TOKENIZER_FILES[self.kind]


@dataclass(frozen=True, slots=True)
class Settings:
    """The options that decide the bytes, in the form in which the steps use them.

    shard_tokens: tokens a shard. block_bytes: bytes of text after which a block ends.
    dtype: `uint32`, or `uint16` where every id fits.
    """

    columns: Columns
    tokenizer: Tokenizer
    shard_tokens: int
    split: SplitRule
    block_bytes: int
    dtype: str = "uint32"

    @property
    def token_dtype(self) -> np.dtype[np.unsignedinteger]:
        """What tokens are stored as."""
        return DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class Job:
    """What is built: settings and the ordered input files.

    origin: how the user named the input (patterns, or dataset and commit); for people only.
    """

    settings: Settings
    files: tuple[SourceFile, ...]
    origin: tuple[tuple[str, str], ...]

    def fingerprint(self) -> str:
        """SHA-256, as hex, over everything that decides the bytes."""
        deciding = {
            "format_version": FORMAT_VERSION,
            "settings": asdict(self.settings),
            "files": [asdict(file) for file in self.files],
        }
        canonical = json.dumps(deciding, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def differences(self, other: Job) -> list[str]:
        """What a person must know to see why two jobs are not the same; empty if they are."""
        found = [
            f"{name}: was {old!r}, now {new!r}"
            for (name, old), (_, new) in zip(
                _flat(self.settings), _flat(other.settings), strict=True
            )
            if old != new
        ]
        if len(self.files) != len(other.files):
            found.append(f"number of input files: was {len(self.files)}, now {len(other.files)}")
        for old_file, new_file in zip(self.files, other.files, strict=False):
            if old_file.path != new_file.path:
                found.append(
                    f"input file {old_file.index}: was {old_file.path}, now {new_file.path}"
                )
                break
            if old_file != new_file:
                found.append(
                    f"{old_file.path} changed: it had {old_file.size} bytes and "
                    f"{old_file.identity}, now {new_file.size} bytes and {new_file.identity}"
                )
                break
        return found

    def save(self, storage: Storage) -> None:
        """Writes `metadata/job.json`."""
        content = {"format_version": FORMAT_VERSION, "fingerprint": self.fingerprint()}
        content |= asdict(self)
        storage.write(JOB_NAME, json.dumps(content, indent=1).encode())

    @classmethod
    def load(cls, storage: Storage) -> Job | None:
        """The job that an output folder belongs to, or None; raises OutputError if unreadable."""
        stored = storage.read_if_there(JOB_NAME)
        if stored is None:
            return None
        try:
            content = json.loads(stored)
            if content["format_version"] != FORMAT_VERSION:
                raise OutputError(
                    f"{storage.path(JOB_NAME)} has format version {content['format_version']}, "
                    f"this fineshards writes {FORMAT_VERSION}. Finish the job with the fineshards "
                    "that began it, or start anew with --overwrite."
                )
            return cls(
                settings=settings_from_json(content["settings"]),
                files=tuple(from_fields(SourceFile, file) for file in content["files"]),
                origin=tuple((name, value) for name, value in content["origin"]),
            )
        except (AttributeError, ValueError, KeyError, TypeError) as error:
            raise OutputError(
                f"{storage.path(JOB_NAME)} is not a readable job record ({error!r}). "
                "Start anew with --overwrite."
            ) from error


def settings_from_json(fields: dict[str, Any]) -> Settings:
    """The inverse of `asdict` on settings; raises KeyError, TypeError or ValueError for other
    content."""
    specials = fields["tokenizer"]["special_tokens"]
    if fields["tokenizer"]["kind"] not in TOKENIZER_FILES:
        raise ValueError(f"unknown kind of tokenizer {fields['tokenizer']['kind']!r}")
    if fields["dtype"] not in DTYPES:
        raise ValueError(f"unknown dtype {fields['dtype']!r}")
    return from_fields(
        Settings,
        fields,
        columns=from_fields(Columns, fields["columns"]),
        tokenizer=from_fields(
            Tokenizer,
            fields["tokenizer"],
            special_tokens=tuple((text, token) for text, token in specials),
        ),
        split=SplitRule(**fields["split"]),
    )


def _flat(settings: Settings) -> list[tuple[str, object]]:
    """Settings under the names of the flags that set them."""
    columns, tokenizer, split = settings.columns, settings.tokenizer, settings.split
    return [
        ("--text_column", columns.text),
        ("--id_column", columns.id),
        ("--id_column given", columns.id_required),
        ("kind of tokenizer", tokenizer.kind),
        ("--tokenizer", tokenizer.name),
        ("vocabulary sha256", tokenizer.vocabulary_sha256),
        ("tokenizer's pattern", tokenizer.pattern),
        ("special tokens", tokenizer.special_tokens),
        ("end-of-text token", tokenizer.eot),
        ("vocabulary size", tokenizer.size),
        ("tokens of the golden texts (tokenizer library)", tokenizer.golden_sha256),
        ("--shard_tokens", settings.shard_tokens),
        ("--test_fraction", split.test_fraction),
        ("--test_shards", split.test_shards),
        ("--block_bytes", settings.block_bytes),
        ("--dtype", settings.dtype),
    ]
