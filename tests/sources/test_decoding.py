"""The encoding of a page of WARC: what it is taken for, whatever is declared."""

import random

import pytest

from fineshards.sources.formats.extraction import decoded

CAFE = "<p>Café de Paris, Zürich, Åre, señor, façade</p>"


def as_page(encoding: str, meta: str = "", paragraphs: str = CAFE) -> bytes:
    declared = f'<meta charset="{meta}">' if meta else ""
    return f"<html><head>{declared}</head><body>{paragraphs}</body></html>".encode(encoding)


@pytest.mark.parametrize("charset", [None, "utf-8", "iso-8859-1", "windows-1251", "nonsense"])
@pytest.mark.parametrize("meta", ["", "utf-8", "iso-8859-2", "shift_jis", "utf-16", "x" * 99])
def test_what_is_valid_utf8_is_utf8_whatever_is_declared(charset: str | None, meta: str) -> None:
    assert decoded(as_page("utf-8", meta), charset) == as_page("utf-8", meta).decode()


@pytest.mark.parametrize(("charset", "meta"), [("UTF-8", ""), (None, "utf-8"), (None, "")])
def test_a_few_bad_bytes_do_not_change_the_encoding(charset: str | None, meta: str) -> None:
    html = as_page("utf-8", meta).replace(b"</p>", b"\xe9</p>")
    assert decoded(html, charset) == html.decode("utf-8", "replace")
    cut = html[: html.index("ç".encode()) + 1]
    assert decoded(cut, charset) == cut.decode("utf-8", "replace")


def test_one_bad_byte_is_enough_to_tell_that_a_page_is_not_utf8_if_nothing_is_declared() -> None:
    """A page in Latin 1 that is cut off after its only letter beyond ASCII."""
    assert decoded(b"<p>caf\xe9", None) == "<p>café"


def test_the_order_is_mark_header_meta_and_what_it_looks_like() -> None:
    russian = f"<p>{'Широкая электрификация южных губерний. ' * 9}</p>"
    html = as_page("koi8-r", "koi8-r", russian)
    whole = html.decode("koi8-r")
    assert decoded(html, None) == decoded(html, "koi8-r") == whole
    assert decoded(html, "utf-8") == decoded(html, "nonsense") == whole
    assert decoded(html, "windows-1251") == html.decode("cp1251")
    assert decoded(as_page("koi8-r", "utf-8", russian), "utf-8").count("губерний") == 9
    commented = html.replace(b"<meta", b"<!-- <meta charset=macintosh> --><meta")
    assert decoded(commented, None) == commented.decode("koi8-r")
    for encoding in ("utf-8-sig", "utf-16"):
        assert decoded(whole.encode(encoding), "windows-1251") == whole


@pytest.mark.parametrize("label", ["unicode", "utf-16", "UTF-16LE", "utf-16be", "ucs-2"])
def test_a_page_that_declares_utf16_is_not_in_it_without_zeros(label: str) -> None:
    assert "Café de Paris, Zürich" in decoded(as_page("cp1252", label, CAFE * 3), None)
    assert "Café de Paris, Zürich" in decoded(as_page("cp1252", "", CAFE * 3), label)


# Labels of the encoding standard, the codec of Python with the same characters, and a text.
ENCODINGS = {
    "windows-1250": ("cp1250", "Příliš žluťoučký kůň úpěl ďábelské ódy"),
    "windows-1251": ("cp1251", "Широкая электрификация южных губерний"),
    "windows-1252": ("cp1252", "“Voilà” – señor, façade, Zürich, €5"),
    "iso-8859-1": ("cp1252", "“Voilà” – señor, façade, Zürich, €5"),
    "us-ascii": ("cp1252", "“Voilà” – señor, façade, Zürich, €5"),
    "windows-1253": ("cp1253", "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία"),
    "windows-1254": ("cp1254", "Pijamalı hasta yağız şoföre çabucak güvendi"),
    "iso-8859-9": ("cp1254", "Pijamalı hasta yağız şoföre çabucak güvendi"),
    "windows-1255": ("cp1255", "דג סקרן שט בים מאוכזב"),
    "windows-1256": ("cp1256", "نص حكيم له سر قاطع وذو شأن عظيم"),
    "windows-1257": ("cp1257", "Įlinkdama fechtuotojo špaga sublykčiojusi"),
    "windows-1258": ("cp1258", "Đ ư ơ ă â ê ô"),
    "iso-8859-2": ("iso8859-2", "Příliš žluťoučký kůň úpěl ďábelské ódy"),
    "iso-8859-3": ("iso8859-3", "Eĥoŝanĝo ĉiuĵaŭde"),
    "iso-8859-4": ("iso8859-4", "Glāžšķūņa rūķīši dzērumā"),
    "iso-8859-5": ("iso8859-5", "Широкая электрификация южных губерний"),
    "iso-8859-6": ("iso8859-6", "نص حكيم له سر قاطع وذو شأن عظيم"),
    "iso-8859-7": ("iso8859-7", "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία"),
    "iso-8859-8": ("iso8859-8", "דג סקרן שט בים מאוכזב"),
    "iso-8859-8-i": ("iso8859-8", "דג סקרן שט בים מאוכזב"),
    "iso-8859-10": ("iso8859-10", "Kæmi ný öxi hér ykist þjófum nú"),
    "iso-8859-13": ("iso8859-13", "Įlinkdama fechtuotojo špaga sublykčiojusi"),
    "iso-8859-14": ("iso8859-14", "Dŵr, tŷ, sŵn, gwŷr, êl"),
    "iso-8859-15": ("iso8859-15", "Cœur, Šiška, žena, 5 €"),
    "iso-8859-16": ("iso8859-16", "Țară și înțelepciune"),
    "koi8-r": ("koi8-r", "Широкая электрификация южных губерний"),
    "koi8-u": ("koi8-u", "Чуєш їх, доцю, га? Кумедна ж ти, прощайся без ґольфів"),
    "macintosh": ("mac-roman", "“Voilà” – señor, façade, Zürich"),
    "ibm866": ("cp866", "Широкая электрификация южных губерний"),
    "windows-874": ("cp874", "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า"),
    "tis-620": ("cp874", "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า"),
    "shift_jis": ("cp932", "いろはにほへと　ちりぬるを　①㈱髙﨑"),
    "windows-31j": ("cp932", "いろはにほへと　ちりぬるを　①㈱髙﨑"),
    "euc-jp": ("euc_jp", "いろはにほへと　ちりぬるを"),
    "iso-2022-jp": ("iso2022_jp", "いろはにほへと　ちりぬるを"),
    "gb2312": ("gb18030", "视野无限广，窗外有蓝天，镕 €"),
    "gbk": ("gb18030", "視野無限廣，窗外有藍天"),
    "gb18030": ("gb18030", "視野無限廣，窗外有藍天 𠮷"),
    "big5": ("big5hkscs", "視野無限廣，窗外有藍天，喺嘅"),
    "euc-kr": ("cp949", "키스의 고유조건은 입술끼리 만나야 하고 똠방각하"),
    "ks_c_5601-1987": ("cp949", "키스의 고유조건은 입술끼리 만나야 하고 똠방각하"),
    "utf-16le": ("utf-16-le", "いろはにほへと Zürich"),
    "utf-16be": ("utf-16-be", "いろはにほへと Zürich"),
}


@pytest.mark.parametrize("label", ENCODINGS)
def test_a_declared_encoding_is_that_of_the_standard(label: str) -> None:
    codec, text = ENCODINGS[label]
    paragraph = f"<p>{text} {text}</p>"
    html = as_page(codec, "", paragraph)
    assert decoded(html, f" {label.upper()}") == html.decode(codec)
    if not label.startswith("utf-16"):  # which a page cannot declare by itself
        html = as_page(codec, label, paragraph)
        assert decoded(html, None) == html.decode(codec)


@pytest.mark.parametrize("seed", range(40))
def test_any_bytes_are_a_page(seed: int) -> None:
    """No page of any encoding, cut and damaged, is an error, and none has a lone surrogate."""
    chosen = random.Random(seed)
    for _ in range(25):
        label, (codec, text) = chosen.choice(list(ENCODINGS.items()))
        html = bytearray(as_page(codec, chosen.choice([label, ""]), f"<p>{text * 3}</p>"))
        for _ in range(chosen.randrange(9)):
            html[chosen.randrange(len(html))] = chosen.randrange(256)
        cut = bytes(html[chosen.randrange(9) : chosen.randrange(9, len(html))])
        charset = chosen.choice([None, *ENCODINGS, "\x00", "utf-7", "hex", "rot13", "idna"])
        decoded(cut, charset).encode()
