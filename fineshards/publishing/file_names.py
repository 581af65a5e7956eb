"""The files that `fineshards publish` writes beside a dataset."""

from __future__ import annotations

CARD_NAME = "README.md"
CROISSANT_NAME = "metadata/croissant.json"
PROVENANCE_NAME = "metadata/provenance.json"
SUMS_NAME = "SHA256SUMS"

# Those that a dataset has together. The card may be its owner's own.
PUBLISHED = (SUMS_NAME, PROVENANCE_NAME, CROISSANT_NAME)


def is_signature(name: str) -> bool:
    """Whether a file may be a signature of the provenance, such as `provenance.json.sig`."""
    return name.startswith(f"{PROVENANCE_NAME}.")
