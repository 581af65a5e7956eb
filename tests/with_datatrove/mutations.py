"""Documents that are changed so that they hit the rules of filters and spaCy's special cases."""

import random
from collections.abc import Callable, Sequence

# What words meet at: emoticons, abbreviations, contractions, units, URLs, odd white space.
PIECES = (
    *(":)", ":O(((", "2)", "(:", ":-(", "8)", ":'(", ">.<", "(._.)", "o.O", "0.0", "</3", "=D"),
    *("xD", "(╯°□°）╯︵┻━┻", "¯\\(ツ)/¯", "a.m.", "10a.m.", "3p.m.,", "U.S.A.", "e.g.", "Mr.Smith"),
    *("vs.", "Mr .", "co", ".", "'", "''", "'s", "’s", "'em", "don't", "can't've", "y'all"),
    *("cannot", "gonna", "km/h", "5km", "10°C.", "°f.", "$5", "US$3", "50%", "1,000.50", "3+4"),
    *("C++", "and/or", "w/o", "https://example.com/a?b=c#d", "www.x.org.", "a@b.com", "file.txt"),
    *("1.2.3.4", "192.168.0.1", "--", "—", "–", "...", "…", "....", "#", "##", "#tag", "*", "•"),
    *("- item", "_", "~", "`", '"', "(", ")", "[1]", "[edit]", "[citation needed]", "{", "}"),
    *("lorem ipsum", "JavaScript", "cookies", "use cookies", "privacy policy", "Terms of Use"),
    *("java[2]script", "IS_ALPHA", "<space>", "\\n", "I.", "i.e.", "Ph.D.", "O'Brien"),
    *(
        "rock'n'roll",
        "x" * 1001,
        "y" * 999,
        "!?!?",
        "？",
        "。",
        "्।",
        "中文没有空格。",
        "日本語",
        "한국어",
    ),
    *("العربية؟", "עברית", "ไทย", "हिन्दी।", "Ünïcödé", "ﬁ", "\ufeff", "\u200b", "\u0301"),
    *("👩‍👩‍👧‍👦", "🇩🇪", "❤️", "K", "İ", "ſ", "ΟΔΟΣ", "½", "²", "©", "\x00", "\x7f"),
)
SPACES = (
    *("  ", "   ", "\t", "\u00a0", "\u2028", "\u3000", "\x85", "\x1c", "\x1f", "\r\n", "\r", "\n"),
    *("\n\n", "\n \n", " \n", "\n\n\n", "\x0b", "\x0c", "\u200a", "\u00a0 ", " \u00a0"),
)

Mutation = Callable[[random.Random, str], str]


def _place(draw: random.Random, text: str) -> int:
    return draw.randint(0, len(text))


def _insert(draw: random.Random, text: str) -> str:
    for _ in range(draw.randint(1, 8)):
        place = _place(draw, text)
        glue = draw.choice(("", " ", " "))
        text = f"{text[:place]}{glue}{draw.choice(PIECES)}{draw.choice(('', ' '))}{text[place:]}"
    return text


def _replace_words(draw: random.Random, text: str) -> str:
    words = text.split(" ")
    for _ in range(draw.randint(1, 1 + len(words) // 4)):
        words[draw.randrange(len(words))] = draw.choice(PIECES)
    return " ".join(words)


def _space(draw: random.Random, text: str) -> str:
    parts = text.split(" ")
    share = draw.choice((0.02, 0.2, 0.9))
    spaces = [draw.choice(SPACES) if draw.random() < share else " " for _ in parts]
    return "".join(x for pair in zip(parts, spaces, strict=True) for x in pair)


def _repeat_words(draw: random.Random, text: str) -> str:
    words = text.split()
    if not words:
        return text
    start, length = draw.randrange(len(words)), draw.randint(1, 14)
    some = words[start : start + length]
    for _ in range(draw.randint(1, 30)):
        place = draw.randint(0, len(words))
        words[place:place] = some
    return " ".join(words)


def _join_words(draw: random.Random, text: str) -> str:
    # The same characters, other words: n-grams that are equal only when joined.
    words = [word for word in text.split() if word.isalpha()][:20]
    joined = [" ".join(words)]
    for _ in range(draw.randint(1, 10)):
        cut = list("".join(words))
        for _ in range(len(words)):
            cut.insert(draw.randint(0, len(cut)), " ")
        joined.append("".join(cut))
    return draw.choice((" ", "\n", ". ")).join(joined)


def _repeat_parts(draw: random.Random, text: str) -> str:
    separator = draw.choice(("\n", "\n\n", ". "))
    parts = text.split(separator)
    for _ in range(draw.randint(1, 10)):
        parts.insert(draw.randint(0, len(parts)), draw.choice(parts))
    return separator.join(parts)


def _lines(draw: random.Random, text: str) -> str:
    step = draw.choice((5, 20, 30, 31, 60))
    lines = [text[start : start + step] for start in range(0, len(text), step)]
    start = draw.choice(("", "", "- ", "• ", " -", "* "))
    end = draw.choice(("", "", ".", "...", "…", "... ", "?", '"', " [1]", "! "))
    share = draw.choice((0.1, 0.3, 0.5, 0.91, 1.0))
    return draw.choice(("\n", "\n\n", "\r\n")).join(
        f"{start}{line}{end}" if draw.random() < share else line for line in lines
    )


def _symbols(draw: random.Random, text: str) -> str:
    symbol = draw.choice(("#", "...", "…", "1", "-", "{", "the", "I", "supercalifragilistic"))
    return " ".join(f"{w} {symbol}" if draw.random() < 0.15 else w for w in text.split(" "))


def _case(draw: random.Random, text: str) -> str:
    return draw.choice((str.upper, str.title, str.lower, str.swapcase))(text)


def _cut(draw: random.Random, text: str) -> str:
    start, end = sorted((_place(draw, text), _place(draw, text)))
    return text[start:end]


def _shorten(draw: random.Random, text: str) -> str:
    return text[: draw.randint(0, 60)]


def _alone(draw: random.Random, text: str) -> str:
    pieces = draw.choices(PIECES, k=draw.randint(0, 12))
    return "".join(x + draw.choice((" ", " ", " ", "", *SPACES)) for x in pieces)


_MUTATIONS: Sequence[Mutation] = (
    *(_insert, _insert, _replace_words, _space, _repeat_words, _join_words, _repeat_parts),
    *(_lines, _lines, _symbols, _case, _cut, _shorten, _alone),
)


def mutated(text: str, seed: int) -> str:
    """A document made of a part of a text, by one to three mutations."""
    draw = random.Random(seed)
    start = draw.randint(0, max(0, len(text) - 200))
    text = text[start : start + draw.choice((100, 400, 800, 1500))]
    for _ in range(draw.randint(1, 3)):
        text = draw.choice(_MUTATIONS)(draw, text)[:4000]
    return text
