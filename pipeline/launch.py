"""Launch: settles the input files, the tokenizer and the output before the graph runs.

A launch finds out whether the output folder is new, holds this job unfinished or finished, or holds
something else. It writes the vocabulary and then the job record. The graph takes everything else
from the record, so on any runner nothing depends on the launching machine afterwards.
"""

import dataclasses
import logging
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fineshards.chat.chat_template import FILES, OTHER_FILES, find_chat_template
from fineshards.config import BuildConfig
from fineshards.cores import usable_cores
from fineshards.encoders.loading import describe_tokenizer, recorded_vocabulary
from fineshards.errors import FineshardsError, InputError, OutputError, UsageError, quoted
from fineshards.pipeline import output_folder
from fineshards.pipeline.input_files import (
    Patterns,
    find_input,
    new_generation,
    refuse_overlap,
    settle_input,
)
from fineshards.shards import split_rule
from fineshards.shards.checkpoints import Checkpoints
from fineshards.shards.dataset_files import expected_files
from fineshards.shards.job.job import Job
from fineshards.shards.job.manifest import Manifest
from fineshards.shards.job.records import SourceFile
from fineshards.shards.job.settings import (
    Chat,
    Columns,
    FillInMiddle,
    RecipeRecord,
    Settings,
    TokenIds,
    Tokenizer,
)
from fineshards.shards.layout import Shuffle
from fineshards.shards.piece_plan import NO_EARLIER, EarlierGeneration
from fineshards.shards.record import replace
from fineshards.sources.columns import TOKENS_COLUMN
from fineshards.sources.formats.format import FORMATS
from fineshards.sources.reading import check_fields
from fineshards.sources.roots import below_root
from fineshards.storage.base import Storage
from fineshards.storage.open import open_storage
from fineshards.wording import describe_leaks
from fineshards.worker.fresh_interpreter import call_apart

_SPECIAL = re.compile(r"<\|\w+\|>")
_log = logging.getLogger("fineshards")


@dataclass(frozen=True, slots=True)
class Launch:
    """A job that is ready to run, or found finished.

    replaces: how an earlier attempt in the folder, which had finished nothing, differed; empty
    if there was none. earlier: what the dataset holds already, if this job is to make it grow.
    resumes: whether the same command goes on where it ends. made: folders that it made.
    """

    job: Job
    checkpoints: Checkpoints
    manifest: Manifest | None
    replaces: str = ""
    earlier: EarlierGeneration = NO_EARLIER
    resumes: bool = True
    made: Sequence[Path] = ()


def prepare(config: BuildConfig) -> Launch:
    """Resolves the input and the tokenizer, and claims the output folder.

    Raises UsageError if the input is not found or the output belongs to another job.
    """
    storage = open_storage(config.folder, config.s3_endpoint)
    job, stored = describe_job(config, storage)
    if not any(file.size for file in job.files):
        which = f"{len(job.files):,} files have" if job.files[1:] else f"{job.files[0].path} has"
        raise InputError(f"the input has no documents: {which} no bytes. Check --input.")
    output_folder.refuse_foreign_files(storage)
    made = output_folder.missing_folders(storage)
    try:
        job, replaces = output_folder.take_folder(storage, job, stored, config)
    except OutputError:
        output_folder.withdraw(storage, job, made)
        raise
    manifest = Manifest.load(storage)
    checkpoints = Checkpoints.of(storage, job)
    if manifest is not None:
        end_finished(manifest, checkpoints, config)
    return Launch(job, checkpoints, manifest, replaces, made=made)


def end_finished(manifest: Manifest, checkpoints: Checkpoints, config: BuildConfig) -> None:
    """Clears the checkpoints that a job leaves behind if it is killed just after its manifest.

    Raises OutputError if a file has changed since, and FineshardsError for leaks.
    """
    storage = checkpoints.storage
    if not config.keep_checkpoints:
        if any(True for _ in storage.names(f"{checkpoints.folder}/")):
            refuse_damage(storage, expected_files(manifest), "the dataset is not finished")
        checkpoints.clear()
    rule, leaks = manifest.settings.split, manifest.leaks
    if config.fail_on_leak and leaks is not None and leaks.test_documents:
        # A build that finds nothing to do must not pass where one that has to do it all fails.
        raise FineshardsError(
            f"{storage.root} is finished, but {describe_leaks(leaks)} (--fail_on_leak). Build it "
            f"again with {rule.flags_against_leaks} and --overwrite."
        )


def refuse_damage(storage: Storage, files: Iterable[tuple[str, int, str]], so: str) -> None:
    """Raises OutputError if one of these files has changed. so: what follows from it."""
    files = [*files]
    with ThreadPoolExecutor(usable_cores()) as pool:
        whole = pool.map(lambda file: storage.matches(*file), files)
        for (name, *_), matches in zip(files, whole, strict=True):
            if not matches:
                raise OutputError(
                    f"{storage.path(name)} is not what the manifest says, so {so}. See what "
                    "fineshards verify says, and run fineshards repair."
                )


def describe_job(
    config: BuildConfig, storage: Storage | None = None
) -> tuple[Job, tuple[bytes, ...]]:
    """The job of a configuration, and the contents of its `stored_files`; writes nothing.

    storage: of the output folder, where it may have begun; None if it is not looked at.

    Raises UsageError or InputError for an input or a tokenizer that cannot be used.
    """
    from fineshards.sources.places.hub import fetch_tokenizer, is_on_hub  # late: it is slow

    patterns, begun = Patterns.of(config), None
    files, origin = find_input(config, patterns)
    if storage is not None:
        refuse_overlap(storage, files, config.dataset, patterns)
        begun = output_folder.begun(storage, 1, config, patterns.train + patterns.test)
    of_tokens = [file.path for file in files if FORMATS[file.format].holds_tokens]
    if of_tokens and config.tokens_column is None:
        try:
            config = dataclasses.replace(config, tokens_column=TOKENS_COLUMN)
        except UsageError as error:
            raise UsageError(f"{of_tokens[0]} needs --tokens_column: {error}") from error
    others, recipe = _curation(config)
    place = os.fspath(config.tokenizer)
    if is_on_hub(place):
        place = fetch_tokenizer(place, FILES if config.chat_template else (), OTHER_FILES)
    tokenizer, vocabulary = describe_tokenizer(place, config.tokenizer_engine, config.eot_token)
    scores = tuple(recipe.scores) if recipe else ()
    columns = replace(columns_of(config, tokenizer), others=others, scores=scores)
    files, left_out = settle_input(files, columns, config, begun)
    if others and not FORMATS[files[0].format].typed:
        call_apart(check_fields, files, columns)
    chat, template = _chat(config, place, tokenizer, vocabulary)
    settings = Settings(
        columns=columns,
        tokenizer=tokenizer,
        shard_tokens=config.shard_tokens,
        split=_split_rule(config),
        block_bytes=config.block_bytes or default_block_bytes(files, recipe is not None),
        dtype=_resolve_dtype(config.dtype, tokenizer),
        shuffle=None if (seed := config.shuffle_seed) is None else Shuffle(seed, key_version=1),
        recipe=recipe,
        statistics=config.statistics or recipe is not None,
        chat=chat,
        fim=_fill_in_middle(config, tokenizer),
    )
    root, files = below_root(files, columns, begun, ())
    generations = (new_generation(files, left_out, root, config),)
    return Job(settings, (*files,), origin, generations=generations), (vocabulary, *template)


def _fill_in_middle(config: BuildConfig, tokenizer: Tokenizer) -> FillInMiddle | None:
    """Raises UsageError for tokens that are not three special tokens."""
    if config.fim is None or config.fim_tokens is None:
        return None
    special = dict(tokenizer.special_tokens)
    by_name = special | {str(id_): id_ for id_ in special.values()}
    names = [name.strip() for name in config.fim_tokens.split(",")]
    ids = {by_name[name] for name in names if name in by_name} - {tokenizer.eot}
    if len(names) != 3 or len(ids) != 3:
        raise UsageError(
            f"--fim_tokens {config.fim_tokens}: give three special tokens of {tokenizer.name}, of "
            f"a prefix, a middle and a suffix. It has {', '.join(special) or 'none'}, and "
            "documents begin with the EOT."
        )
    rate, _, spm_rate = config.fim.partition(",")
    return FillInMiddle(rate, spm_rate, *(by_name[name] for name in names))


def columns_of(config: BuildConfig, tokenizer: Tokenizer) -> Columns:
    """Returns the columns to read."""
    key = None if config.test_shards is not None else split_rule.SplitKey(config.key_of_split)
    is_default = config.text_column == "text" and config.chat_template is not None
    return Columns(
        text=config.tokens_column or ("messages" if is_default else config.text_column),
        id=config.id_column or "id",
        id_required=bool(config.id_column) or (key is not None and key.name == "id"),
        split=None if key is None else key.column,
        template=config.text_template,
        conversations=config.chat_template is not None,
        drop_reasoning=config.drop_reasoning,
        tokens=TokenIds(tokenizer.eot, tokenizer.size) if config.tokens_column else None,
    )


def _split_rule(config: BuildConfig) -> split_rule.SplitRule:
    if config.has_test_files:
        return split_rule.ByInput()
    if config.test_shards is not None:
        return split_rule.FirstShards(config.test_shards)
    share = config.test_share
    if not split_rule.FRACTION.fullmatch(share):
        raise UsageError(
            f"--test_fraction {quoted(share)} has more than 40 digits above or below the line. "
            "A dataset does not record so many: round it."
        )
    return split_rule.ByFraction(share, config.key_of_split, hash_version=1)


def default_block_bytes(files: Sequence[SourceFile], curates: bool) -> int:
    """Returns the bytes of text per block, from the files' sizes alone: every launch agrees.

    Large, because a block costs some milliseconds however small it is, and all of FineWeb (tens of
    terabytes of text) should have about a million. Even so, a worker that dies loses only half a
    second of work. Smaller for small inputs, so that all workers are busy to the end.

    curates: whether there is a recipe, whose steps take seconds per megabyte: then blocks are
    smaller still.
    """
    parts, least = (128, 1 << 20) if curates else (32, 16 << 20)
    return min(max(sum(file.size for file in files) // parts, least), 64 << 20)


def _resolve_dtype(wanted: str, tokenizer: Tokenizer) -> str:
    """Returns the dtype in effect; raises UsageError for one that cannot hold every id."""
    fits = tokenizer.size <= 1 << 16
    if wanted == "auto":
        return "uint16" if fits else "uint32"
    if wanted == "uint16" and not fits:
        raise UsageError(
            f"--dtype uint16: the ids of {tokenizer.name} go up to {tokenizer.size - 1:,}, but 16 "
            "bits hold at most 65,535. Use --dtype uint32 or auto."
        )
    return wanted


def _curation(config: BuildConfig) -> tuple[tuple[str, ...], RecipeRecord | None]:
    """The columns that the steps of a job read, and their record."""
    if not config.curates:
        if config.keep_keys:
            raise UsageError("--keep_keys goes with deduplication, and there are no steps.")
        return (), None
    return call_apart(_describe, config)


def _describe(config: BuildConfig) -> tuple[tuple[str, ...], RecipeRecord | None]:
    from fineshards.pipeline.requested_steps import columns_of_steps, describe_steps, steps_of

    steps = steps_of(config)
    return columns_of_steps(steps), describe_steps(steps, config.keep_keys, config.curate_test)


def _chat(
    config: BuildConfig, place: str, tokenizer: Tokenizer, vocabulary: bytes
) -> tuple[Chat | None, tuple[bytes, ...]]:
    """The record of the chat template, and the content of its file; None, and none, for texts."""
    if config.chat_template is None:
        return None, ()
    from fineshards.chat.conversation_encoder import ConversationEncoder  # imports jinja2

    template = find_chat_template(config.chat_template, place)
    encoding = recorded_vocabulary(tokenizer, vocabulary)
    special = dict(encoding.special_tokens)
    if ordinary := sorted({*_SPECIAL.findall(template.text)} - special.keys()):
        _log.warning(
            "the chat template writes %s, which the tokenizer reads as ordinary text, in several "
            "tokens each: choose a tokenizer that has them as special tokens",
            ", ".join(ordinary),
        )
    golden, last_tokens = ConversationEncoder(template, encoding, config.roles).golden()
    if last_tokens and last_tokens.isdisjoint(special.values()):
        _log.warning(
            "no answer that is learned ends in a special token, so a model does not learn to stop: "
            "let the chat template write one there, inside {% generation %} if it has that"
        )
    chat = Chat(template.sha256, config.roles, template.special_strings, golden)
    return chat, (template.text.encode(),)
