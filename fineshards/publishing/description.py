"""What the owner of a dataset says about it, which the dataset itself does not know."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from datetime import date
from typing import Any

from fineshards.credentials import refuse_secrets
from fineshards.errors import UsageError, quoted, with_escaped_bytes
from fineshards.publishing.licenses import is_url, license_url

# What Croissant requires, and no dataset can say of itself.
_REQUIRED = ("license", "creator", "url", "date_published")
PERSON = "person:"


@dataclass(frozen=True, slots=True)
class Description:
    """What the owner of a dataset says about it. Empty where nothing was said.

    Args:
        name: The dataset's name.
        description: What it is, as Markdown.
        license: The URL of its license.
        creator: The organization that made it, or `person:` and a name.
        url: Its page.
        date_published: The day of its publication, as 2026-11-30.
        citation: How to cite it, as BibTeX.
        no_paths: Whether the names of local folders are left out of the provenance.
    """

    name: str = ""
    description: str = ""
    license: str = ""
    creator: str = ""
    url: str = ""
    date_published: str = ""
    citation: str = ""
    no_paths: bool = False

    def with_given(self, **given: str | bool | None) -> Description:
        """The description with other values where some are given; an empty one says nothing.

        Raises UsageError for values that cannot be published.
        """
        said: dict[str, Any] = {
            name: value.strip() if isinstance(value, str) else value
            for name, value in given.items()
            if value is not None
        }
        for name, value in said.items():
            if not isinstance(value, type(getattr(self, name))):
                kind = "True or False" if name == "no_paths" else "text"
                raise UsageError(f"--{name} is {quoted(value)}; give {kind}.")
        if said.get("license"):
            said["license"] = license_url(said["license"])
        found = replace(self, **said)
        found.check()
        return found

    def check(self) -> None:
        """Raises UsageError for values that cannot be published."""
        texts = {name: value for name, value in asdict(self).items() if isinstance(value, str)}
        for name, value in texts.items():
            if with_escaped_bytes(value) != value:
                raise UsageError(f"--{name}: it is not valid UTF-8. Write it in UTF-8.")
        refuse_secrets(self.url, "--url")
        refuse_secrets(self.license, "--license")
        if self.url and not is_url(self.url):
            raise UsageError(
                f"--url {self.url}: not the URL of a page. It begins with https://, and what is "
                "not allowed in a URL is written as %20."
            )
        if self.date_published and not _is_day(self.date_published):
            raise UsageError(
                f"--date_published {self.date_published}: not a day. Write it as 2026-11-30."
            )
        if self.creator and not self.creator.removeprefix(PERSON).strip():
            raise UsageError(f"--creator {self.creator}: no name. Write it as person:NAME.")
        if "\n" in self.name or len(self.name) > 200:
            raise UsageError("--name: it must be one line of at most 200 characters.")
        for name, value in texts.items():
            if "<!--" in value:
                raise UsageError(
                    f"--{name}: it holds <!--, which begins a comment in README.md. Leave it out."
                )

    def missing(self) -> list[str]:
        """The fields that Croissant requires and that are not said."""
        return [name for name in _REQUIRED if not getattr(self, name)]


def _is_day(text: str) -> bool:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return False
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
