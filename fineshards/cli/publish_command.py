"""The command `publish`."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from fineshards.cli.answer import Answer, every_ten_seconds
from fineshards.cli.command import Command, add_flag, add_folder
from fineshards.parser import Parser, boolean
from fineshards.wording import counted

_SAID = {
    "name": ("NAME", "Its name. Default: made of its source and its tokenizer."),
    "description": ("TEXT", "What it is, as Markdown. Its counts are added."),
    "license": ("ID", "An SPDX identifier such as CC-BY-4.0, or the URL of a license."),
    "creator": ("NAME", "The organization that made it, or person:NAME."),
    "url": ("URL", "Its page."),
    "date_published": ("DAY", "The day of its publication, such as 2026-11-30."),
    "citation": ("TEXT", "How to cite it, as BibTeX."),
}


def _add_flags(parser: Parser) -> None:
    add_folder(parser)
    said = parser.add_argument_group(
        "what the dataset cannot say of itself; what is left out stays as it was said before"
    )
    for name, (metavar, text) in _SAID.items():
        said.add_argument(f"--{name}", metavar=metavar, help=text)
    about = "Leave names of folders in stores out too. metadata/manifest.json keeps them."
    add_flag(said, "--no_paths true|false", about, nargs="?", const=True, type=boolean)


def _publish(args: Namespace) -> Answer:
    from fineshards.publishing.publish import describe_published, publish_files
    from fineshards.storage.open import open_storage

    report = every_ten_seconds(lambda done: f"hashed {counted(done, 'file')}")
    given = {name: getattr(args, name) for name in (*_SAID, "no_paths")}
    done = publish_files(open_storage(args.folder), given, report)
    return Answer(asdict(done), describe_published(done))


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
    _add_flags,
    _publish,
)
