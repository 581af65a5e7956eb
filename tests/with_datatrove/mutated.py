"""Documents with random edits, so that steps and datatrove are compared on what no one writes."""

import random
from collections.abc import Iterable, Iterator, Sequence

# What steps look for, and what is near it.
SEEDS = (
    *("ann@example.org", "a.b-c@d.e", ".a..b@x.y.", "é@x.org", "ab@[1.2.3.4]", "@@", "x@y"),
    *("a@b.c@d.e", "8.8.8.8", "10.0.0.1", "256.1.1.1", "1.2.3.4.5.6.7.8", "01.02.03.04"),
    *("192.0.0.9", "100.64.0.1", "* * *", "---", "\n===\n\n===\n", "|", "\n||\n", " \t* \n"),
    *("\r\n", "\u2028", "\x85", "\x0b", "\x1d", "Ã©", "â€œ", "&lt;", "&amp;", "<b>", "\x1b[31m"),
    *("\x80", "\x00", "\ufeff", "ﬁ", "ＡＢ", "“", "\ud7ff", "Ünï", "عربى", "漢字", "हिन्दी", "😀"),
    *("\u0301", "ς", "Σ", "1,234.5", "٣٫٤", "İ", "\u00a0"),
)


def mutated(texts: Sequence[str], number: int, seed: str) -> Iterator[str]:
    """Yields `number` texts, each a text of `texts` with some edits.

    seed: the same edits for the same seed.
    """
    chance = random.Random(seed)
    for _ in range(number):
        text = chance.choice(texts)[: chance.choice((200, 2000, 20000))]
        for _ in range(chance.randint(1, 8)):
            text = _edited(text, texts, chance)
        yield text


def _edited(text: str, texts: Sequence[str], chance: random.Random) -> str:
    at = chance.randint(0, len(text))
    to = min(len(text), at + chance.choice((1, 2, 10, 100)))
    edit = chance.randrange(6)
    if edit == 0:
        return text[:at] + text[to:]
    if edit == 1:
        return text[:to] + text[at:]
    if edit == 2:
        other = chance.choice(texts)
        return text[:at] + other[at:to] + text[at:]
    if edit == 3:
        lines = text.splitlines(keepends=True)
        chance.shuffle(lines)
        return "".join(lines)
    return text[:at] + "".join(_some(chance)) + text[at:]


def _some(chance: random.Random) -> Iterable[str]:
    return (chance.choice(SEEDS) for _ in range(chance.randint(1, 4)))
