"""Passwords and tokens in URLs: refused where a URL is given, and masked where one is shown.

Whatever names a place is recorded in datasets and shown in messages, so no secret may be in it.
"""

import re

from fineshards.errors import UsageError

# What a token is for, where that makes it a secret: `page_token` is none.
_TOKENS = (
    "access|api|app|auth|bearer|client|deploy|github|gitlab|hf|id|job|login|oauth|private|refresh"
    "|sas|secret|security|session|user"
)
_SECRETS = (
    # A user and a password: what follows the colon is not a port, nor a repository on GitHub.
    re.compile(r"((?<!github)://)[^\s/?#:@\[\]]*:(?!\d{0,5}(?:[/?#\s'\"]|$))\S{0,999}(?=@)"),
    # A user alone, where the store has none: it is a token.
    re.compile(r"((?:https?|s3|gs)://)[^\s/?#@]{1,999}(?=@)", re.IGNORECASE),
    re.compile(
        r"([?&](?:password|passwd|pwd|(?:\w+_)?secret|api[_-]?key|token|sig|(?:x-\w+-|q-)?signature"
        rf"|(?:\w+_)?(?:{_TOKENS})[_-]?token)=)[^\s&#'\"]+",
        re.IGNORECASE,
    ),
)
_URL = re.compile(r"[a-z][a-z0-9+.-]*:(//|:)", re.IGNORECASE)


def masked(text: str) -> str:
    """A text without the passwords and tokens of the URLs in it.

    Example:
        >>> masked("https://me:secret@host.example:9000/x?a=1&token=abc cannot be read")
        'https://…@host.example:9000/x?a=1&token=… cannot be read'
    """
    for secret in _SECRETS:
        text = secret.sub(r"\1…", text)
    return text


def refuse_secrets(place: str, flag: str = "") -> str:
    """A path or URL as it is; raises UsageError for a URL with a password or token in it.

    flag: what gave it, for the message.
    """
    shown = masked(place) if _URL.match(place) else place
    if shown != place:
        raise UsageError(
            f"{flag and f'{flag} '}{shown}: a user or password in a URL, a token or a signature, "
            "would be written into records and messages. Leave it out (download what a signature "
            "opens): credentials come from the environment, ~/.netrc or the store's own tools."
        )
    return place


def refuse_secrets_in_endpoint(endpoint: str | None, name: str) -> None:
    """As `refuse_secrets`, of the address of a server, which may lack its scheme."""
    if endpoint:
        refuse_secrets(endpoint if "://" in endpoint else f"http://{endpoint}", name)
