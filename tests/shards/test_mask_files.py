"""Loss masks as bytes."""

from __future__ import annotations

import numpy as np
import pytest

from fineshards.shards.masks import begins_as, mask_content

LEARNED = np.array([[1, 3], [5, 9]])


@pytest.mark.parametrize("tokens", [9, 13, 16])
def test_a_longer_mask_begins_as_the_shorter_one(tokens: int) -> None:
    longer = mask_content(np.vstack([LEARNED, [[tokens, tokens + 40]]]), tokens + 50)
    short = mask_content(LEARNED, tokens)
    assert begins_as(short, LEARNED, tokens)
    assert begins_as(longer, LEARNED, tokens)
    assert not begins_as(longer, LEARNED, tokens + 1)


@pytest.mark.parametrize("tokens", [13, 16])
def test_a_mask_without_its_last_byte_is_another_one(tokens: int) -> None:
    # The byte has no learned token.
    learned = LEARNED[:1]
    assert not begins_as(mask_content(learned, tokens)[:-1], learned, tokens)
