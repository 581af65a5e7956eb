"""The commands that keep and give a dataset: `verify`, `repair`, `redact`, `export`, `publish`."""

from argparse import Namespace
from contextlib import suppress

from msgspec import to_builtins

from fineshards.cli import options
from fineshards.cli.command import (
    Answer,
    Command,
    add_flag,
    add_folder,
    add_folder_and_generation,
    add_sources,
    every_ten_seconds,
    note,
)
from fineshards.errors import UsageError
from fineshards.flags import count
from fineshards.parser import Parser
from fineshards.wording import counted
from fineshards.worker import own_process


def _add_verify_flags(parser: Parser) -> None:
    add_folder_and_generation(parser)
    what = parser.add_argument_group("what is checked")
    add_flag(
        what,
        "--sample SAMPLE",
        "Also tokenize documents again from their sources, and compare: a share such as 1%%, or "
        "about a number of them such as 1000. Default: none.",
        type=_share_or_count,
        default=0.0,
    )
    add_flag(
        what,
        "--sha256",
        "Also read every file once more, and compare it with SHA256SUMS, which publish wrote.",
    )
    add_flag(
        what,
        "--dataset FOLDER",
        "Of an export, the dataset that it was made of: says whether documents were redacted "
        "since.",
    )
    add_sources(parser)


def _share_or_count(text: str) -> float | str:
    with suppress(ValueError):
        percent = float(text)
        if 0 < percent <= 100:
            note(f"--sample {text} means {text}% of the documents; write --sample {text}%.")
            return f"{text}%"
        return percent
    return text if text.endswith("%") else count(text)


def _verify(args: Namespace) -> Answer:
    from fineshards.verification.verify import describe_verdict, verify

    verdict = verify(
        args.folder,
        sample=args.sample,
        generation=args.generation,
        sha256=args.sha256,
        dataset=args.dataset,
        sources=args.sources,
    )
    return Answer(verdict, describe_verdict(verdict), 0 if verdict.ok else 1)


VERIFY = Command(
    "verify",
    "check that a dataset is complete and undamaged",
    "FOLDER [--sample SAMPLE] [--sha256] [--json]",
    "Reads every file of a dataset and checks it against the manifest.\n"
    "Exits with 1 if there is a problem.",
    (
        "fineshards verify out",
        "fineshards verify out --sample 1%",
        "fineshards verify out --sample 1000",
    ),
    _add_verify_flags,
    _verify,
)


def _add_repair_flags(parser: Parser) -> None:
    add_folder(parser)
    add_flag(
        parser.add_argument_group("what is needed"),
        "--tokenizer PLACE",
        "Where the tokenizer is, if its file in the dataset is damaged. Default: its name.",
    )
    add_sources(parser)


def _repair(args: Namespace) -> Answer:
    from fineshards.maintenance.repair import describe_repaired, repair

    done = repair(args.folder, args.tokenizer, args.sources)
    return Answer(done, describe_repaired(done), 1 if done.left else 0)


REPAIR = Command(
    "repair",
    "rebuild lost or damaged files from the sources",
    "FOLDER [--tokenizer PLACE] [--sources OLD=NEW] [--json]",
    "Reads every file of a dataset, and rebuilds those that differ from what the\n"
    "manifest says. Changes nothing unless all of them can be made as they were.",
    ("fineshards repair out",),
    _add_repair_flags,
    _repair,
)


def _add_redact_flags(parser: Parser) -> None:
    add_folder(parser)
    which = parser.add_argument_group("which documents")
    add_flag(which, "--ids FILE", "A file of ids, one per line.")
    add_flag(
        which,
        "--documents N",
        "Documents by their numbers in the dataset, which inspect shows.",
        nargs="+",
        action="extend",
        default=[],
    )


def _redact(args: Namespace) -> Answer:
    from fineshards.maintenance.redact import describe_redacted, read_ids, redact

    if args.ids is None and not args.documents:
        raise UsageError("give --ids, a file of ids, or --documents, their numbers.")
    ids = [] if args.ids is None else read_ids(args.ids)
    done = redact(args.folder, ids, args.documents)
    return Answer(done, describe_redacted(done))


REDACT = Command(
    "redact",
    "overwrite documents in place, as a new generation",
    "FOLDER (--ids FILE | --documents N...) [--json]",
    "Overwrites the tokens of documents with the end-of-text token. Nothing moves: shards\n"
    "keep their length, and the state of a training stays valid. It cannot be undone.",
    ("fineshards redact out --ids ids.txt", "fineshards redact out --documents 17 2305"),
    _add_redact_flags,
    _redact,
)


def _add_export_flags(parser: Parser) -> None:
    add_folder(parser)
    options.add_export_flags(parser)


def _export(args: Namespace) -> Answer:
    from fineshards.cli.terminal import error_console, set_up_logging
    from fineshards.exports.export_job import prepare
    from fineshards.pipeline.export_run import describe_export, new_pipeline_for, run_here, run_on

    wanted, beam_args = options.export_options(args), args.beam_args
    own_process.resume = own_process.RESUME
    # Before the folder is claimed, so that a misspelt flag claims nothing.
    if beam_args:
        set_up_logging(error_console(), local=False)
    pipeline = new_pipeline_for(wanted, beam_args) if beam_args else None
    job, finished = prepare(wanted)
    done = finished
    if done is None and pipeline is not None:
        submitted = run_on(job, pipeline, beam_args)
        if isinstance(submitted, str):
            return Answer({"submitted": submitted}, [submitted])
        done = submitted
    if done is None:
        parts = len(job.parts)
        report = every_ten_seconds(lambda done: f"exported {done:,} of {parts:,} parts")
        done = run_here(job, wanted.workers, report)
    first = ["nothing to do: the export is finished"] if finished else []
    record = {"output": job.storage.root, **to_builtins(done)}
    return Answer(record, [*first, *describe_export(job, done)])


EXPORT = Command(
    "export",
    "write a dataset as files of another trainer",
    "FOLDER --to FORMAT --output FOLDER [flags]",
    "Writes the tokens as files that Megatron, nanotron, OLMo-core and others read, without\n"
    "tokenizing again. An interrupted export resumes; fineshards verify checks the files.",
    (
        "fineshards export out --to megatron --output out-megatron",
        "fineshards export out --to raw --split train --output out-raw",
    ),
    _add_export_flags,
    _export,
    "With an option of Apache Beam, such as --runner=DataflowRunner, it is a job there.",
    for_beam=True,
)


_DESCRIPTION = {
    "name": ("NAME", "Its name. Default: made of its source and its tokenizer."),
    "description": ("TEXT", "What it is, as Markdown. Its counts are added."),
    "license": ("ID", "An SPDX identifier such as CC-BY-4.0, or the URL of a license."),
    "creator": ("NAME", "The organization that made it, or person:NAME."),
    "url": ("URL", "Its page."),
    "date_published": ("DAY", "The day of its publication, such as 2026-11-30."),
    "citation": ("TEXT", "How to cite it, as BibTeX."),
}


def _add_publish_flags(parser: Parser) -> None:
    add_folder(parser)
    group = parser.add_argument_group(
        "facts that the dataset does not contain; omitted flags keep their earlier values"
    )
    for name, (metavar, text) in _DESCRIPTION.items():
        group.add_argument(f"--{name}", metavar=metavar, help=text)


def _publish(args: Namespace) -> Answer:
    from fineshards.publishing.publish import describe_published, publish_files
    from fineshards.storage.open import open_storage

    report = every_ten_seconds(lambda done: f"hashed {counted(done, 'file')}")
    given = {name: getattr(args, name) for name in _DESCRIPTION}
    done = publish_files(open_storage(args.folder), given, report)
    return Answer(done, describe_published(done))


PUBLISH = Command(
    "publish",
    "describe a dataset to others: Croissant, a card, SHA-256 sums",
    "FOLDER [flags]",
    "Writes metadata/croissant.json, README.md (a dataset card) and SHA256SUMS.\n"
    "Every file of the dataset is read once.",
    (
        "fineshards publish out",
        "fineshards publish out --license CC-BY-4.0 --creator 'Example Lab' "
        "--url https://example.org/out",
    ),
    _add_publish_flags,
    _publish,
)
