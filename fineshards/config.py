"""What to build, and how: one frozen object, checked once. The flags of `build` are its fields."""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from fineshards.errors import UsageError, quoted
from fineshards.flags import (
    allowance,
    checked,
    deciding,
    flag,
    flags_of,
    local_path,
    place_of,
    simplest,
)
from fineshards.text_template import template_parts

# The seed's shard size.
DEFAULT_SHARD_TOKENS = 100_000_000
# Of one upload to S3: https://docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html
_MOST_S3_TOKENS = (5 << 30) // 4 - 32
# One document in a hundred, unless the seed's rule (`test_shards`) is asked for.
_DEFAULT_TEST_FRACTION = "1/100"
_SPLIT_KEYS = ("text", "id", "host", "row")

# Flags that take places, one or more.
PATTERNS = ("input", "test_input", "sources")

_INPUT = "input (--input or --dataset)"
_OUTPUT = "output"
_TOKENIZER = "tokenizer"
_WORK = "work"
_CURATION = "curation"
# Pairs of flags of which one is given at most.
_EXCLUDE = (
    ("test_fraction", "test_shards"),
    ("split_key", "test_shards"),
    *((name, "test_input") for name in ("test_fraction", "test_shards", "split_key")),
    *((name, "dataset_test_split") for name in ("test_fraction", "test_shards", "split_key")),
    ("test_input", "dataset_test_split"),
    ("text_column", "text_template"),
    ("text_template", "chat_template"),
    ("fim", "chat_template"),
    *((name, "tokens_column") for name in ("text_column", "text_template", "chat_template")),
    *((name, "tokens_column") for name in ("recipe", "where", "dedup", "decontaminate")),
    *((name, "tokens_column") for name in ("statistics", "fim")),
)
# Flags that have a meaning with another one.
_GOES_WITH = {
    "learn": "chat_template",
    "drop_reasoning": "chat_template",
    "fim": "fim_tokens",
    "fim_tokens": "fim",
    "dataset_config": "dataset",
    "dataset_revision": "dataset",
    "dataset_test_split": "dataset",
    "fail_on_repeats": "append",
}
# Flags that `estimate` and `recipe check` do not take, which build a sample of a whole input.
NOT_ESTIMATED = ("append", "limit", "share")


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildConfig:
    """What to build, and how. Each field is the flag of `fineshards build` of that name.

    Args:
        input: Files to read, one or more: a pattern such as data/*.parquet; a URL of gs://, s3://,
            https://, hf://datasets/OWNER/NAME@REVISION/ or another protocol that fsspec reads; or a
            folder, which means all data files below it, except for names that begin with . or _,
            README, LICENSE and *.md. May be repeated. Files are read in the order given, and each
            pattern's matches are sorted. Formats: .parquet, .arrow, .feather; .jsonl, .csv, .tsv
            and .txt, plain or .gz, .zst, .xz, .bz2; .warc and .wet, plain, .gz or .zst; .ds and
            .bin with their indexes.
        test_input: Files like those of --input whose documents are the test split; those of
            --input, or of --dataset, are train then. A recipe applies to train, and deduplication
            drops from train what is in test.
        sources: Where the input is now, as OLD=NEW: what is in the folder OLD of --input, or of an
            earlier generation, is in NEW. May be repeated.
        dataset: Instead of --input, a dataset on the Hugging Face hub, or a local folder laid out
            like one.
        dataset_config: The dataset's configuration, such as sample-350BT.
        dataset_split: The dataset's split. Default: train.
        dataset_test_split: The dataset's split that is the test split, such as validation. Works
            as --test_input.
        dataset_revision: The dataset's branch, tag or commit.
        text_column: The column that holds the text. Default: text; with --chat_template messages,
            or prompt and completion, or Alpaca's, where a file has these instead.
        text_template: Instead of --text_column, a text of several columns, such as
            '{title}\\n\\n{text}'. On the command line \\n, \\t and \\\\ mean line end, tab and
            backslash. {{ and }} are braces.
        tokens_column: The column of token ids, such as input_ids, of documents that --tokenizer
            made already. Files of .ds and .bin need none.
        chat_template: Documents are conversations, which this template of Jinja makes text of:
            tokenizer, which means the tokenizer's own, or a file, or a name such as chatml.
        learn: With --chat_template, the roles whose messages are learned, separated by commas.
            Default: assistant.
        drop_reasoning: Leave out the reasoning of answers: reasoning_content, reasoning, thinking,
            and what ends with </think> at the beginning of their content.
        allow_constant_mask: Take files of conversations in which all tokens are learned, or none.
        id_column: The column that names documents in the document tables. Default: id, where a
            file has it, and null where its value is an object or a list.
        extract: The library that extracts text from HTML in WARC files: resiliparse, which is
            fast, or trafilatura, as for FineWeb. Default: resiliparse.
        quoting: Whether values may be in quotes: quotes (the default of .csv) or none (of .tsv).
        text_separator: What ends each document of a .txt file: line, blank_line, or a text such as
            <|endoftext|>. Default: the end of the file; with --dataset, line.
        limit: For trials: read only the first N documents. Default: all.
        recipe: A TOML file with the steps that documents pass before they are tokenized, or the
            name of one that comes with fineshards, such as fineweb. Flags override it.
        where: A condition in SQL on the columns of the input, such as language_score > 0.9. Rows
            that do not meet it are dropped, before the recipe.
        dedup: Drop documents that repeat an earlier one, after the recipe: exact (the same text)
            or minhash (nearly the same).
        decontaminate: Files of evaluations, such as evals/*.jsonl. Documents that contain their
            questions are dropped, after the recipe.
        keep_keys: Keep the keys of duplicates with the dataset, so that it can grow.
        curate_test: Apply the recipe to documents of --test_input or --dataset_test_split as well.
        output: Folder for the dataset: local, gs://bucket/folder or s3://bucket/folder.
        s3_endpoint: The URL of the store that s3:// means, such as https://minio.example:9000.
            Default: AWS_ENDPOINT_URL, or Amazon S3.
        tokenizer: A tiktoken encoding, or a tokenizer.json of Hugging Face's tokenizers library:
            the file, a folder that holds one, or a repository on the hub as OWNER/NAME or
            OWNER/NAME@REVISION. ./NAME is a path, where NAME is an encoding. Default: cl100k_base.
        eot_token: The special token that begins each document. Default: <|endoftext|>, if there
            is one.
        fim: Rearrange a share of the documents so that a model learns to fill in the middle, and
            of these a share with the suffix first, such as 0.5,0.5. A hash of its place decides
            each document. Default: none.
        fim_tokens: With --fim, the special tokens before a prefix, a middle and a suffix, by name
            or id, such as '<|fim_prefix|>,<|fim_middle|>,<|fim_suffix|>'.
        dtype: Type of the tokens in the shards. auto is uint16 where every id of the tokenizer
            fits. Default: uint32.
        shard_tokens: Tokens per shard. Default: 100,000,000.
        shuffle_seed: Shuffle the documents of each split. The order depends on this number and on
            where in the input each document is. Default: the order of the input.
        statistics: Count documents, words, lengths and languages for fineshards stats. Always
            on with a recipe.
        test_fraction: Share of the documents that form the test split. A hash of the split key
            decides each document on its own. Default: 0.01.
        split_key: What is hashed: text, id, host (of the column url), row, or column:NAME.
            Documents with the same key are in the same split. Default: text, so exact duplicates
            are.
        test_shards: Instead of a fraction, the number of test shards: the first ones of the whole
            stream.
        append: Add the input to the finished dataset in --output, as fineshards append does.
        overwrite: Delete what the output folder holds of another job, and start again.
        share: Do only a share of the work, such as 3/64, on one of several machines that share the
            output folder. The command without it does what is left.
        workers: Worker processes of a local run; workers to begin with on Dataflow. Default: one
            per usable core; Dataflow's own choice.
        tokenizer_engine: The library that encodes. All give the same tokens. Default: auto, the
            fastest one that is proven to do so.
        block_bytes: Bytes of text per block, the unit of work. Default: 16 to 64 MiB, by the size
            of the input; with a recipe from 1 MiB. Use 1GiB to shuffle more than 100 GB of tokens.
        memory_bytes: What a worker holds at a time while it sorts or compares: with --shuffle_seed
            tokens, by default 256 MiB, and more for inputs beyond 70 billion tokens, at most
            1.5 GiB on remote runners; with deduplication keys, by default 64 MiB.
        max_bad_rows: Skip up to this many unreadable rows, or up to a share of all rows such as
            0.1%, and list them in metadata/rejected/. One more fails the job: of a share, once all
            rows are read. Default: 0.
        max_bad_files: Leave out up to this many input files that cannot be read, or up to a share
            of them such as 1%, and list them in metadata/rejected/. The launch then reads all
            files once. Default: 0, and the first such file ends the job.
        fail_on_leak: Fail, before the dataset is finished, if a text is in both splits. Default: a
            warning with the number of such documents.
        fail_on_repeats: For an append. Fail, before it is finished, if the text of a new document
            is in the dataset already. Default: a warning with the number of such documents.
        trust_input: Go on with input of the same names and sizes, but of another time, version or
            place than when the job began, because its content is the same. Default: refuse it.
        keep_checkpoints: Keep the token blocks when the job is finished.
        beam_args: Options of Apache Beam, such as ("--runner=DataflowRunner",).

    Raises:
        UsageError: For a value out of range, or fields that exclude each other.

    Example:
        >>> config = BuildConfig(input="data/*.parquet", output="out", test_fraction=0.05)
        >>> config.patterns, config.test_fraction, config.shard_tokens
        (('data/*.parquet',), '1/20', 100000000)
    """

    input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = flag((), _INPUT, "FILE")
    test_input: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = flag((), _INPUT, "FILE")
    sources: str | Sequence[str] = flag((), _INPUT, "OLD=NEW")
    dataset: str | None = flag(None, _INPUT, "NAME")
    dataset_config: str | None = flag(None, _INPUT, "NAME")
    dataset_split: str = flag("train", _INPUT, "NAME")
    dataset_test_split: str | None = flag(None, _INPUT, "NAME")
    dataset_revision: str | None = flag(None, _INPUT, "REVISION")
    text_column: str = flag("text", _INPUT, "NAME", decides=True)
    text_template: str | None = flag(None, _INPUT, "TEXT", decides=True)
    tokens_column: str | None = flag(None, _INPUT, "NAME", decides=True)
    chat_template: str | None = flag(None, _INPUT, "FILE", decides=True)
    learn: str = flag("assistant", _INPUT, "ROLES", decides=True)
    drop_reasoning: bool = flag(False, _INPUT, decides=True)
    allow_constant_mask: bool = flag(False, _INPUT)
    id_column: str | None = flag(None, _INPUT, "NAME", decides=True)
    extract: Literal["resiliparse", "trafilatura"] = flag("resiliparse", _INPUT)
    quoting: Literal["quotes", "none"] | None = flag(None, _INPUT)
    text_separator: str | None = flag(None, _INPUT, "TEXT")
    limit: int | None = flag(None, _INPUT, "N", least=1)
    recipe: str | os.PathLike[str] | None = flag(None, _CURATION, "FILE", decides=True)
    where: str | None = flag(None, _CURATION, "SQL", decides=True)
    dedup: Literal["exact", "minhash"] | None = flag(None, _CURATION, decides=True)
    decontaminate: str | None = flag(None, _CURATION, "FILE", decides=True)
    keep_keys: bool = flag(False, _CURATION, decides=True)
    curate_test: bool = flag(False, _CURATION, decides=True)
    output: str | os.PathLike[str] = flag("", _OUTPUT, "FOLDER")
    s3_endpoint: str | None = flag(None, _OUTPUT, "URL")
    tokenizer: str | os.PathLike[str] = flag("cl100k_base", _TOKENIZER, "NAME", decides=True)
    eot_token: str | None = flag(None, _TOKENIZER, "TEXT", decides=True)
    fim: str | None = flag(None, _TOKENIZER, "RATES", decides=True)
    fim_tokens: str | None = flag(None, _TOKENIZER, "NAMES", decides=True)
    dtype: Literal["auto", "uint16", "uint32"] = flag("uint32", _OUTPUT, decides=True)
    shard_tokens: int = flag(DEFAULT_SHARD_TOKENS, _OUTPUT, "N", least=1, decides=True)
    shuffle_seed: int | None = flag(None, _OUTPUT, "S", decides=True)
    statistics: bool = flag(False, _OUTPUT, decides=True)
    test_fraction: str | float | Fraction | None = flag(None, _OUTPUT, "F", decides=True)
    split_key: str | None = flag(None, _OUTPUT, "KEY", decides=True)
    test_shards: int | None = flag(None, _OUTPUT, "N", decides=True)
    append: bool = flag(False, _OUTPUT)
    overwrite: bool = flag(False, _OUTPUT)
    share: str | None = flag(None, _WORK, "K/N")
    workers: int | None = flag(None, _WORK, "N", least=1)
    tokenizer_engine: str = flag("auto", _WORK, "ENGINE", plugins="encoders")
    block_bytes: int | None = flag(None, _WORK, "SIZE", least=1, decides=True)
    memory_bytes: int | None = flag(None, _WORK, "SIZE", least=1)
    max_bad_rows: int | str = flag(0, _WORK, "N")
    max_bad_files: int | str = flag(0, _WORK, "N")
    fail_on_leak: bool = flag(False, _WORK)
    fail_on_repeats: bool = flag(False, _WORK)
    trust_input: bool = flag(False, _WORK)
    keep_checkpoints: bool = flag(False, _WORK)
    beam_args: Sequence[str] = ()

    def __post_init__(self) -> None:
        if sys.flags.optimize > 1:
            why = "Apache Beam needs docstrings, which python -OO and PYTHONOPTIMIZE=2 leave out."
            raise UsageError(f"{why} Run it with python -O or PYTHONOPTIMIZE=1.")
        for name in PATTERNS:
            given = getattr(self, name) or ()
            if isinstance(given, str) or not isinstance(given, Iterable):
                given = (given,)
            self._settle(name, tuple(local_path(place_of(name, pattern)) for pattern in given))
        self._settle("output", place_of("output", self.output or ""))
        for name in ("tokenizer", "dataset", "recipe"):
            if name == "tokenizer" or getattr(self, name) is not None:
                self._settle(name, place_of(name, getattr(self, name)))
        if isinstance(self.beam_args, str):
            raise UsageError(f"beam_args must be a list such as [{self.beam_args!r}], not text.")
        self._settle("beam_args", tuple(self.beam_args))
        for name in ("max_bad_rows", "max_bad_files"):
            self._settle(name, allowance(name, getattr(self, name)))
        flags = flags_of(BuildConfig)
        for field in flags:
            if field.name not in PATTERNS:
                self._settle(field.name, checked(self, field))
        self._check_places()
        given = [flag.name for flag in flags if getattr(self, flag.name) != flag.default]
        if self.append:
            refuse_decided(given)
        for one, other in _EXCLUDE:
            if one in given and other in given:
                raise UsageError(f"--{one} and --{other} exclude each other; give one.")
        for one, other in _GOES_WITH.items():
            if one in given and other not in given:
                raise UsageError(f"--{one} goes with --{other}. Give both, or none.")
        if self.dataset_test_split == self.dataset_split:
            raise UsageError(
                f"--dataset_split and --dataset_test_split are both {quoted(self.dataset_split)}. "
                "Name two splits."
            )
        if self.curate_test and not (self.has_test_files and self.curates):
            raise UsageError(
                "--curate_test goes with a recipe, and with --test_input or --dataset_test_split."
            )
        if self.memory_bytes is not None and not (
            self.append or self.shuffle_seed is not None or self.curates
        ):
            raise UsageError("--memory_bytes goes with --shuffle_seed or deduplication.")
        if self.text_template is not None:
            try:
                template_parts(self.text_template)
            except ValueError as error:
                raise UsageError(
                    f"--text_template {quoted(self.text_template)}: {error}."
                ) from None
        if "" in self.roles:
            raise UsageError(f"--learn must be roles, such as assistant, got {quoted(self.learn)}.")
        if self.fim is not None:
            self._check_fim(self.fim.split(","))
        if self.split_key is not None:
            kind, separator, name = self.split_key.partition(":")
            if self.split_key not in _SPLIT_KEYS and not (kind == "column" and separator and name):
                keys = f"{', '.join(_SPLIT_KEYS)} or column:NAME"
                raise UsageError(f"--split_key must be {keys}, got {quoted(self.split_key)}.")
        if self.test_fraction is not None:
            self._settle("test_fraction", simplest("test_fraction", self.test_fraction))

    @property
    def patterns(self) -> tuple[str, ...]:
        """The input patterns, as a tuple however they were given."""
        assert isinstance(self.input, tuple)
        return self.input

    @property
    def test_patterns(self) -> tuple[str, ...]:
        """The patterns of the test split, as a tuple however they were given."""
        assert isinstance(self.test_input, tuple)
        return self.test_input

    @property
    def has_test_files(self) -> bool:
        """Whether files decide the split."""
        return bool(self.test_input or self.dataset_test_split)

    @property
    def test_share(self) -> str:
        """The test fraction in lowest terms, however it was given."""
        if self.test_fraction is None:
            return _DEFAULT_TEST_FRACTION
        assert isinstance(self.test_fraction, str)
        return self.test_fraction

    @property
    def key_of_split(self) -> str:
        """The split key in effect, where documents are split by one."""
        return self.split_key or "text"

    @property
    def curates(self) -> bool:
        """Whether documents pass steps before they are tokenized."""
        return any((self.recipe, self.where, self.dedup, self.decontaminate))

    @property
    def folder(self) -> str:
        """The output folder, as text however it was given."""
        return os.fspath(self.output)

    def _settle(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_fim(self, rates: Sequence[str]) -> None:
        if len(rates) != 2:
            raise UsageError(
                f"--fim must be two shares, of documents and of those with the suffix first, such "
                f"as 0.5,0.5, got {quoted(self.fim)}."
            )
        self._settle("fim", ",".join(simplest("fim", rate) for rate in rates))

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles whose messages are learned, sorted."""
        return tuple(sorted({role.strip() for role in self.learn.split(",")}))

    def _check_places(self) -> None:
        """Input and output are given, and go together."""
        if self.input and self.dataset:
            raise UsageError("give either --input or --dataset, and not both.")
        given = self.input or self.dataset or (self.append and self.test_input)
        needed = {"--input or --dataset": given, "--output": self.output}
        if missing := [flag for flag, value in needed.items() if not value]:
            raise UsageError(f"give {', and '.join(missing)}.")
        if self.sources and self.dataset and not self.append:
            raise UsageError("--sources goes with --input; with --dataset it has no meaning.")
        if self.dataset and self.dataset.startswith(("gs://", "s3://")):
            raise UsageError(
                f"--dataset {self.dataset}: a dataset is a name on the Hugging Face hub or a local "
                "folder. For objects use --input, such as --input 'gs://bucket/folder/*.parquet'."
            )
        if self.folder.startswith("s3://") and self.shard_tokens > _MOST_S3_TOKENS:
            raise UsageError(
                f"--shard_tokens {self.shard_tokens:,}: an object on s3:// holds at most 5 GiB, "
                f"{_MOST_S3_TOKENS:,} tokens. Give fewer."
            )


def refuse_decided(given: Iterable[str]) -> None:
    """Raises UsageError if a flag that was given to an append is one that the dataset decides."""
    for name in given:
        if name in deciding(BuildConfig):
            raise UsageError(
                f"--{name} is the dataset's own, and an append takes it from there. Leave it out."
            )
