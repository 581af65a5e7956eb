"""What the owner of a dataset says about it, which the dataset itself does not know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date

from fineshards.credentials import refuse_secrets
from fineshards.errors import UsageError, quoted, with_escaped_bytes
from fineshards.shards.record import Record, replace

# What Croissant requires, and no dataset can say of itself.
_REQUIRED = ("license", "creator", "url", "date_published")
PERSON = "person:"
_PAGES = "https://spdx.org/licenses/"
# Characters of RFC 3986, section 2.
_URL = re.compile(r"https?://[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")


class Description(Record, frozen=True):
    """What the owner of a dataset says about it. Empty where nothing was said.

    license: its URL. creator: an organization, or `person:` and a name. date_published: as
    2026-11-30. description: Markdown. citation: BibTeX.
    """

    name: str = ""
    description: str = ""
    license: str = ""
    creator: str = ""
    url: str = ""
    date_published: str = ""
    citation: str = ""

    def with_given(self, given: Mapping[str, str | None]) -> Description:
        """The description with other values where some are given; an empty one says nothing.

        Raises UsageError for values that cannot be published.
        """
        texts = {name: value for name, value in given.items() if value is not None}
        for name, value in texts.items():
            if not isinstance(value, str):
                raise UsageError(f"--{name} is {quoted(value)}; give text.")
            if with_escaped_bytes(value) != value:
                raise UsageError(f"--{name}: it is not valid UTF-8. Write it in UTF-8.")
            if "<!--" in value:
                raise UsageError(
                    f"--{name}: it holds <!--, which begins a comment in README.md. Leave it out."
                )
            texts[name] = value.strip()
        if texts.get("license"):
            texts["license"] = license_url(texts["license"])
        description = replace(self, **texts)
        description._check()
        return description

    def _check(self) -> None:
        refuse_secrets(self.url, "--url")
        refuse_secrets(self.license, "--license")
        if self.url and not _URL.fullmatch(self.url):
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

    def missing(self) -> list[str]:
        """The fields that Croissant requires and that are empty."""
        return [name for name in _REQUIRED if not getattr(self, name)]


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def license_url(text: str) -> str:
    """The page of a license: a URL as it is, or that of an SPDX identifier in any case.

    Raises UsageError for anything else.

    Example:
        >>> license_url("cc-by-4.0"), license_url("https://spdx.org/licenses/MIT.html")
        ('https://spdx.org/licenses/CC-BY-4.0', 'https://spdx.org/licenses/MIT')
    """
    if _URL.fullmatch(text) and not text.startswith(_PAGES):
        return text
    from license_expression import ExpressionError, LicenseSymbol, get_spdx_licensing

    name = text.removeprefix(_PAGES).removesuffix(".html")
    try:
        found = get_spdx_licensing().parse(name, validate=True)
    except ExpressionError:
        found = None
    if not isinstance(found, LicenseSymbol) or found.key.startswith("LicenseRef"):
        raise UsageError(
            f"--license {text}: not an SPDX identifier. Give one of https://spdx.org/licenses, "
            "such as CC-BY-4.0 or ODC-By-1.0, or the URL of the license."
        )
    return f"{_PAGES}{found.key}"


def hub_fields(url: str) -> dict[str, str]:
    """What a dataset card on the hub says of a license.

    Example:
        >>> hub_fields("https://spdx.org/licenses/ODC-By-1.0")
        {'license': 'odc-by'}
        >>> hub_fields("https://a.example/terms")
        {'license': 'other', 'license_name': 'terms', 'license_link': 'https://a.example/terms'}
    """
    if url.startswith(_PAGES):
        # These have no version in the hub's identifiers.
        unversioned = r"^(c-uda|odbl|odc-by|pddl)-1\.0$"
        return {"license": re.sub(unversioned, r"\1", url.removeprefix(_PAGES).lower())}
    last = url.partition("?")[0].rstrip("/").rpartition("/")[2]
    return {"license": "other", "license_name": last, "license_link": url}
