"""DCLM's rules on lines, against the same in plain Python."""

from collections.abc import Iterable, Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fineshards.curation.batch import Batch
from fineshards.curation.steps.unwanted_lines import DclmLines

PIECES = (
    *("A line of prose that is kept.", "SHOUTED", "Up and DOWN", "12", "\u0663\u0664", "Word"),
    *("a b", "3 likes", "1,204.5K Views!", "- 7m  comments -", "12 x likes", "3_likes", "likes"),
    *("k views", "items in cart", "3 ITEMS in cart", "Read more...", "read MORE…", "Read more or"),
    *("sign-in", "Sign-in now", "a b c d e f g h i", "\x1c", "\u00a0", "\u2028", "\0", "\t", "_x"),
    *("…", "é"),
)
LINES = st.lists(
    st.sampled_from(PIECES) | st.text(st.characters(codec="utf-8", exclude_characters="\n")),
    max_size=4,
).flatmap(lambda pieces: st.sampled_from([" ", "", "  "]).map(lambda gap: gap.join(pieces)))
TEXTS = st.lists(LINES, max_size=6).map("\n".join)
RATIOS = st.sampled_from([0, 0.05, 0.3, 1.0])


def judged(step: DclmLines, text: str) -> tuple[str | None, str]:
    outcome = step.apply(Batch.of_texts([text]))
    assert outcome.reasons is not None
    assert outcome.texts is not None
    return outcome.reasons[0], outcome.texts[0]


def is_counter(line: str, counted: Sequence[str]) -> bool:
    line = line.lower()
    in_words = [at for at, each in enumerate(line) if each.isalnum() or each == "_"]
    parts = line[in_words[0] : in_words[-1] + 1].split() if in_words else []
    if len(parts) != 2 or parts[1] not in counted:
        return False
    number = parts[0][:-1] if parts[0][-1] in "kmb" else parts[0]
    return number[:1].isdecimal() and all(each.isdecimal() or each in ",." for each in number)


def is_removed(step: DclmLines, line: str) -> bool:
    upper = sum(each.isupper() for each in line) / len(line)
    digits = sum(each.isdigit() for each in line) / len(line)
    return (
        upper > step.max_uppercase_ratio
        or digits > step.max_numeric_ratio
        or is_counter(line, step.counted)
        or len(line.split()) < step.min_words_per_line
    )


def after(line: str, at: int, phrases: Iterable[str]) -> int | None:
    """Where a phrase that begins at a place ends."""
    for phrase in phrases:
        found = line[at : at + len(phrase)]
        if len(found) == len(phrase) and all(
            one.lower() == other.lower() or other == "."
            for one, other in zip(found, phrase, strict=True)
        ):
            return at + len(phrase)
    return None


def without(line: str, phrases: Sequence[str], place: str) -> str:
    """A short line without the phrases of a place, and without one space beside each."""
    if place == "at_beginning":
        end = after(line, 0, phrases)
        return line if end is None else line[end + line[end : end + 1].isspace() :]
    left, at = "", 0
    while at < len(line):
        for skipped in (1, 0) if line[at].isspace() else (0,):
            end = after(line, at + skipped, phrases)
            if end is not None and (place == "anywhere" or end == len(line)):
                at = end
                break
        else:
            left += line[at]
            at += 1
    return left


def cut(step: DclmLines, line: str, place: str) -> str:
    if len(line.split()) > step.short_line_words:
        return line
    return without(line, getattr(step, place), place)


PLACES = ("anywhere", "at_end", "at_beginning")
OFF = {"max_uppercase_ratio": 1.0, "max_numeric_ratio": 1.0, "counted": (), "min_words_per_line": 0}


def fasttext_words(text: str) -> int:
    for separator in "\n\r\t\v\f\0":
        text = text.replace(separator, " ")
    return sum(word[:1].isalnum() for word in text.split(" "))


def plain_dclm(step: DclmLines, text: str) -> tuple[str | None, str]:
    rest = text
    one_by_one = [
        DclmLines(**(OFF | {name: getattr(step, name)}))
        for name in ("max_uppercase_ratio", "max_numeric_ratio", "counted", "min_words_per_line")
    ]
    for only in one_by_one:
        lines = rest.split("\n")
        rest = "\n".join(line for line in lines if not line or not is_removed(only, line)).strip()
    for place in PLACES:
        pairs = [(line, cut(step, line, place)) for line in rest.split("\n")]
        rest = "\n".join(left for line, left in pairs if not line or left.strip()).strip()
    words = fasttext_words(text)
    if not words or not rest:
        return "empty", rest
    lost = (words - fasttext_words(rest)) / words
    return "removed_words" if lost > step.max_removed_ratio else None, rest


@settings(max_examples=500)
@given(TEXTS, RATIOS)
@example("  12\n12 a", 1.0)
@example("  ABC\nSHOUTED\n12", 1.0)
@example("x Sign-in items in cart Read more...\nitems in cart ITEMS IN CART", 1.0)
def test_a_text_is_judged_by_the_definition(text: str, ratio: float) -> None:
    dclm = DclmLines(max_removed_ratio=ratio)
    assert judged(dclm, text) == plain_dclm(dclm, text)
    batch = Batch.of_texts([text])
    assert dclm.apply(batch) == dclm.apply_again(batch)


PAGE = """\
MAIN MENU | Home
Sign-in Basket: 2 items in cart

2024
Our walk began at the mill, where the river is widest.
  It ended at the inn. Read more...
1.2k views
Weather
We had 3 likes of it, and saw many items in cart after cart all the way down to the sea."""


def test_a_page_by_the_program_of_dclm() -> None:
    # A line keeps the spaces before it, and "Read more..." is an expression.
    page = PAGE.replace("Read more...", "Read more!?!")
    kept = """\
Basket: 2

Our walk began at the mill, where the river is widest.
  It ended at the inn.
We had 3 likes of it, and saw many items in cart after cart all the way down to the sea."""
    assert judged(DclmLines(max_removed_ratio=0.4), page) == (None, kept)
    assert judged(DclmLines(max_removed_ratio=0.2), page)[0] == "removed_words"
    # A menu of white space and marks has no words that count.
    assert judged(DclmLines(), "-- ... --\n-- ... --")[0] == "empty"
    # Once the menu is gone, white space before the number is at the beginning of the text.
    any_length = DclmLines(max_removed_ratio=1, min_words_per_line=0)
    assert judged(any_length, "MENU\n 12\nA b") == (None, "A b")
    assert judged(any_length, "Menu\n 12\nA b") == (None, "Menu\n 12\nA b")
