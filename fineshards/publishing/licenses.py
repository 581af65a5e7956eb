"""Licenses: SPDX identifiers, their pages, and what the Hugging Face hub calls them."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from fineshards.errors import UsageError

_PAGES = "https://spdx.org/licenses/"
# RFC 3986, section 2.
_URL = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")

# The hub's identifiers that are SPDX identifiers in lower case, as in its table of licenses
# (hub documentation, "Licenses"), and the families that it has for some others.
_HUB = frozenset(
    (
        *("afl-3.0", "apache-2.0", "artistic-2.0", "bsd-2-clause", "bsd-3-clause"),
        *("bsd-3-clause-clear", "bsl-1.0", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0"),
        *("cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0"),
        *("cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0", "cc-by-sa-3.0"),
        *("cc-by-sa-4.0", "cc0-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0"),
        *("cdla-sharing-1.0", "ecl-2.0", "epl-1.0", "epl-2.0", "etalab-2.0", "eupl-1.1", "isc"),
        *("lppl-1.3c", "mit", "mpl-2.0", "ms-pl", "ncsa", "ofl-1.1", "osl-3.0", "postgresql"),
        *("unlicense", "wtfpl", "zlib"),
    )
)
_HUB_FAMILIES = {
    "C-UDA-1.0": "c-uda",
    "ODC-By-1.0": "odc-by",
    "ODbL-1.0": "odbl",
    "PDDL-1.0": "pddl",
}


def license_url(text: str) -> str:
    """The page of a license: a URL as it is, or that of an SPDX identifier in any case.

    Raises UsageError for anything else.

    Example:
        >>> license_url("cc-by-4.0"), license_url("https://spdx.org/licenses/MIT.html")
        ('https://spdx.org/licenses/CC-BY-4.0', 'https://spdx.org/licenses/MIT')
    """
    if is_url(text) and not text.startswith(_PAGES):
        return text
    from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

    try:
        # SPDX writes GPL-2.0+ as GPL-2.0-or-later now, and has no page for MIT+.
        name = text.removeprefix(_PAGES).removesuffix(".html").replace("+", "-or-later")
        found = str(canonicalize_license_expression(name))
    except InvalidLicenseExpression:
        found = ""
    if not found or " " in found or found.startswith("LicenseRef"):
        raise UsageError(
            f"--license {text}: not an SPDX identifier. Give one of https://spdx.org/licenses, "
            "such as CC-BY-4.0 or ODC-By-1.0, or the URL of the license."
        )
    return _PAGES + found


def hub_fields(url: str) -> dict[str, str]:
    """What a dataset card on the hub says of a license.

    Example:
        >>> hub_fields("https://spdx.org/licenses/ODC-By-1.0")
        {'license': 'odc-by'}
        >>> hub_fields("https://a.example/terms")
        {'license': 'other', 'license_name': 'terms', 'license_link': 'https://a.example/terms'}
    """
    name = url.removeprefix(_PAGES)
    known = name.lower() if name.lower() in _HUB else _HUB_FAMILIES.get(name)
    if known is not None:
        return {"license": known}
    last = urlsplit(url).path.rstrip("/").rpartition("/")[2]
    return {"license": "other", "license_name": last or "other", "license_link": url}


def is_url(text: str) -> bool:
    """Whether a text is the URL of a page.

    Example:
        >>> is_url("https://a.example/terms"), is_url("a.example"), is_url("https://a b")
        (True, False, False)
    """
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    web = parts.scheme in ("http", "https") and bool(parts.hostname)
    return web and _URL.fullmatch(text) is not None
