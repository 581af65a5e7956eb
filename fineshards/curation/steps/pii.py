"""Replaces email addresses and public IP addresses: datatrove's PIIFormatter.

datatrove takes its replacements in turn, across documents, so a text gets another replacement when
another document came before it. Here the replacement of an address follows from its document's
place in the input, and the address's number within the document:

    XXH3_64bits_withSeed(FILE:ROW:KIND:NUMBER, SEED) modulo the number of replacements

KIND is `email` or `ip`; NUMBER counts the addresses of a kind that are replaced, from 0.
"""

import hashlib
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import xxhash

from fineshards.curation.batch import Batch
from fineshards.curation.parameters import Unless, some
from fineshards.curation.step import Judge, Outcome


def _replacements(value: object) -> tuple[str, ...]:
    """A rule: some strings, or one."""
    return tuple(some("replacement")([value] if isinstance(value, str) else value))


_Replacements = Annotated[tuple[str, ...] | str, _replacements]
_KeepsEmails, _KeepsIps = Unless(remove_emails=(False,)), Unless(remove_ips=(False,))

# The bytes of "fs-pii".
SEED = 0x66732D706969

# What may be left of the @ is a dot-atom of RFC 5322: runs of these, joined by single dots.
_ATOM = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+/=?^_`{|}~-"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_BYTE = "25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?"
# From the @ on: a domain, or an address in brackets.
_DOMAIN = re.compile(
    rf"@(?:(?:{_LABEL}\.)+{_LABEL}"
    rf"|\[(?:(?:{_BYTE})\.){{3}}(?:{_BYTE}|[A-Za-z0-9-]*[A-Za-z0-9]:)\])"
)
# Where an address may begin: at a border of a word, but not with a dot.
_BEGIN = re.compile(r"\b[^.]")
# What an IP address is part of. Searching these first takes a third of the time.
_DIGITS_AND_DOTS = re.compile(r"[0-9][0-9.]{6,}")
_IP = re.compile(rf"(?:(?:{_BYTE})\.){{3}}(?:{_BYTE})")

# Addresses in and beside the ranges of IANA's registry, which Python updates now and then.
_PROBES = (
    "0.0.0.0 1.0.0.0 10.0.0.0 11.0.0.0 100.63.0.0 100.64.0.0 100.128.0.0 127.0.0.0 128.0.0.0 "
    "169.253.0.0 169.254.0.0 172.16.0.0 172.32.0.0 192.0.0.0 192.0.0.7 192.0.0.8 192.0.0.9 "
    "192.0.0.10 192.0.0.11 192.0.0.170 192.0.0.171 192.0.0.172 192.0.1.0 192.0.2.0 192.31.196.0 "
    "192.52.193.0 192.88.99.0 192.88.99.2 192.168.0.0 192.175.48.0 198.17.0.0 198.18.0.0 "
    "198.20.0.0 198.51.100.0 203.0.113.0 224.0.0.0 233.252.0.0 239.255.0.0 240.0.0.0 "
    "255.255.255.255"
)


@dataclass(frozen=True)
class Pii(Judge, name="pii"):
    """Replaces email addresses and public IPv4 addresses.

    Args:
        remove_emails: Whether to replace email addresses.
        remove_ips: Whether to replace IP addresses.
        only_remove_public_ips: Whether addresses of private and reserved networks stay.
        email_replacement: What email addresses are replaced by; one of several by a hash.
        ip_replacement: What IP addresses are replaced by.

    Example:
        >>> Pii(email_replacement="MAIL").apply(Batch.of_texts(["Ask ann@debian.org."])).texts
        ['Ask MAIL.']
    """

    REWRITES: ClassVar[bool] = True

    remove_emails: bool = True
    remove_ips: bool = True
    only_remove_public_ips: Annotated[bool, _KeepsIps] = True
    email_replacement: Annotated[_Replacements, _KeepsEmails] = (
        "email@example.com",
        "firstname.lastname@example.org",
    )
    ip_replacement: Annotated[_Replacements, _KeepsIps] = (
        "22.214.171.124",
        "126.96.36.199",
        "188.8.131.52",
        "184.108.40.206",
        "220.127.116.11",
        "18.104.22.168",
    )

    def pins(self) -> dict[str, str]:
        """See Step. Which addresses are public is known to Python's ipaddress."""
        public = "".join(str(int(_is_public(address))) for address in _PROBES.split())
        return {"public addresses": hashlib.sha256(public.encode()).hexdigest()}

    def apply(self, batch: Batch) -> Outcome:
        rows = batch.rows.tolist()
        return Outcome(
            texts=[
                self._rewrite(text, f"{batch.file}:{row}")
                for text, row in zip(batch.strings, rows, strict=True)
            ]
        )

    def _rewrite(self, text: str, place: str) -> str:
        if self.remove_emails and "@" in text:
            text = _replace(text, email_spans(text), self.email_replacement, f"{place}:email")
        if self.remove_ips:
            text = _replace(text, self._ip_spans(text), self.ip_replacement, f"{place}:ip")
        return text

    def _ip_spans(self, text: str) -> Iterator[tuple[int, int]]:
        accepted = _is_public if self.only_remove_public_ips else _is_address
        for run in _DIGITS_AND_DOTS.finditer(text):
            for match in _IP.finditer(text, *run.span()):
                if accepted(match[0]):
                    yield match.span()


def email_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yields begin and end of the email addresses in a text.

    The same spans as those of one regular expression that begins with the dot-atom, which takes
    time by the square of a text such as "a-a-a-a-…". This looks to the left of each @ once.
    """
    end, at = 0, text.find("@")
    while at >= 0:
        domain = _DOMAIN.match(text, at)
        # An @ ends a run, and so does the address before. The run's rest behind a ".." is left.
        run = text[end:at]
        run = run[len(run.rstrip(_ATOM + ".")) :].rpartition("..")[2].lstrip(".")
        if domain and run and run[-1] != ".":
            begin = _BEGIN.search(text, at - len(run), at)
            if begin:
                yield begin.start(), domain.end()
                end = domain.end()
        end = max(end, at + 1)
        at = text.find("@", end)


def _replace(
    text: str, spans: Iterator[tuple[int, int]], replacements: tuple[str, ...] | str, key: str
) -> str:
    parts, done = [], 0
    for number, (begin, end) in enumerate(spans):
        hash_ = xxhash.xxh3_64_intdigest(f"{key}:{number}".encode(), SEED)
        parts += [text[done:begin], replacements[hash_ % len(replacements)]]
        done = end
    return "".join([*parts, text[done:]]) if done else text


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:  # a number with a leading zero
        return False
    return True


def _is_public(text: str) -> bool:
    return _is_address(text) and ipaddress.IPv4Address(text).is_global
