"""Pages of WARC in 39 encodings, cut and damaged: read at least as well as by datatrove."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from datatrove.pipeline.readers import WarcReader
from test_warc import read_with, response, with_extractor, write

# The first article of the Universal Declaration of Human Rights.
TEXTS = {
    "Arabic": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. وقد وهبوا عقلا وضميرا وعليهم أن "
    "يعامل بعضهم بعضا بروح الإخاء.",
    "Chinese": "人人生而自由，在尊严和权利上一律平等。"
    "他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "Czech": "Všichni lidé se rodí svobodní a sobě rovní co do důstojnosti a práv. Jsou nadáni "
    "rozumem a svědomím a mají spolu jednat v duchu bratrství.",
    "Esperanto": "Ĉiuj homoj estas denaske liberaj kaj egalaj laŭ digno kaj rajtoj. Ili posedas "
    "racion kaj konsciencon, kaj devus konduti unu al alia en spirito de frateco.",
    "French": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont "
    "doués de raison et de conscience et doivent agir dans un esprit de fraternité.",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. "
    "Είναι προικισμένοι με λογική και συνείδηση.",
    "Hebrew": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם חוננו בתבונה ובמצפון.",
    "Icelandic": "Hver maður er borinn frjáls og jafn öðrum að virðingu og réttindum. Menn eru "
    "gæddir vitsmunum og samvizku, og ber þeim að breyta bróðurlega hverjum við annan.",
    "Japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて"
    "平等である。人間は、理性と良心とを授けられており、互いに同胞の精神をもって行動しなければならない。",
    "Korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. "
    "인간은 천부적으로 이성과 양심을 부여받았으며 서로 형제애의 정신으로 행동하여야 한다.",
    "Latvian": "Visi cilvēki piedzimst brīvi un vienlīdzīgi savā pašcieņā un tiesībās. Viņi ir "
    "apveltīti ar saprātu un sirdsapziņu, un viņiem jāizturas citam pret citu brālības garā.",
    "Romanian": "Toate ființele umane se nasc libere și egale în demnitate și în drepturi. Ele "
    "sînt înzestrate cu rațiune și conștiință.",
    "Russian": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены "
    "разумом и совестью и должны поступать в отношении друг друга в духе братства.",
    "Taiwan": "人人生而自由，在尊嚴和權利上一律平等。"
    "他們賦有理性和良心，並應以兄弟關係的精神相對待。",
    "Thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม",
    "Turkish": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve vicdana "
    "sahiptirler ve birbirlerine karşı kardeşlik zihniyeti ile hareket etmelidirler.",
    "Ukrainian": "Всі люди народжуються вільними і рівними у своїй гідності та правах. Вони "
    "наділені розумом і совістю і повинні діяти в дусі братерства.",
    "Welsh": "Genir pawb yn rhydd ac yn gydradd â'i gilydd mewn urddas a hawliau. Fe'u "
    "cynysgaeddir â rheswm a chydwybod, fel dŵr a thŷ.",
}
# Labels of the encoding standard with their codecs of Python, by language.
ENCODINGS = {
    "Arabic": {"windows-1256": "cp1256", "iso-8859-6": "iso8859-6"},
    "Chinese": {"gb2312": "gb2312", "gbk": "gbk", "gb18030": "gb18030"},
    "Czech": {"windows-1250": "cp1250", "iso-8859-2": "iso8859-2"},
    "Esperanto": {"iso-8859-3": "iso8859-3"},
    "French": {"windows-1252": "cp1252", "iso-8859-1": "latin-1", "iso-8859-15": "iso8859-15"}
    | {"macintosh": "mac-roman"},
    "Greek": {"windows-1253": "cp1253", "iso-8859-7": "iso8859-7"},
    "Hebrew": {"windows-1255": "cp1255", "iso-8859-8": "iso8859-8"},
    "Icelandic": {"iso-8859-10": "iso8859-10"},
    "Japanese": {"shift_jis": "cp932", "euc-jp": "euc_jp", "iso-2022-jp": "iso2022_jp"}
    | {"utf-16le": "utf-16"},
    "Korean": {"euc-kr": "euc_kr", "ks_c_5601-1987": "cp949"},
    "Latvian": {"windows-1257": "cp1257", "iso-8859-4": "iso8859-4", "iso-8859-13": "iso8859-13"},
    "Romanian": {"iso-8859-16": "iso8859-16"},
    "Russian": {"windows-1251": "cp1251", "koi8-r": "koi8-r", "iso-8859-5": "iso8859-5"}
    | {"ibm866": "cp866", "utf-8": "utf-8"},
    "Taiwan": {"big5": "big5"},
    "Thai": {"windows-874": "cp874", "tis-620": "cp874"},
    "Turkish": {"windows-1254": "cp1254", "iso-8859-9": "iso8859-9"},
    "Ukrainian": {"koi8-u": "koi8-u"},
    "Welsh": {"iso-8859-14": "iso8859-14"},
}
PARAGRAPHS = 8


def pages(declared: str, harm: str) -> Iterator[tuple[str, list[str], bytes]]:
    """The pages: encoding, paragraphs, and the record of the response.

    declared: where the page says its encoding. harm: what happened to its bytes.
    """
    for language, labels in ENCODINGS.items():
        texts = [f"{number}. {TEXTS[language]}" for number in range(PARAGRAPHS)]
        for label, codec in labels.items():
            chosen = random.Random(f"{label} {declared} {harm}")
            meta = f'<meta charset="{label}">' if declared == "meta" else ""
            head = f"<html><head><title>t</title>{meta}</head><body><article>"
            body = "".join(f"<p>{text}</p>" for text in texts)
            html = bytearray(f"{head}{body}</article></body></html>".encode(codec))
            if harm == "cut":  # the last character too, where it has several bytes
                last = len(f"{head}{body}"[: -len(TEXTS[language]) // 2].encode(codec))
                del html[last - 1 :]
            elif harm == "damaged":
                for _ in range(3):
                    html[chosen.randrange(len(html) // 2, len(html))] = chosen.randrange(128, 256)
            kind = f"text/html; charset={label}" if declared == "header" else "text/html"
            yield label, texts, response(bytes(html), kind=kind)


# Read better by datatrove where nothing is declared: resiliparse, which detects for us, takes them
# for windows-1252. cchardet knows them.
WORSE = {("", "euc-kr"), ("", "ks_c_5601-1987")}


@pytest.mark.parametrize("harm", ["", "cut", "damaged"])
@pytest.mark.parametrize("declared", ["header", "meta", ""])
def test_pages_are_read_at_least_as_well(tmp_path: Path, declared: str, harm: str) -> None:
    """Of each page as many paragraphs are right, and of some pages more."""
    made = {f"{number:02}.warc": page for number, page in enumerate(pages(declared, harm))}
    assert len(made) == 39
    for name, (_, _, record) in made.items():
        write(tmp_path / name, [record])
    found = WarcReader(str(tmp_path)).run()
    theirs = {Path(each.metadata["file_path"]).name: each.text for each in found}
    worse, better = set(), set()
    for name, (label, texts, _) in made.items():
        read = read_with(with_extractor(tmp_path / name, "resiliparse"))
        ours = "".join(str(text) for _, text, _ in read.rows)
        right = sum(text in ours for text in texts)
        right_there = sum(text in theirs.get(name, "") for text in texts)
        assert right == PARAGRAPHS or harm or not declared, label
        if right != right_there:
            (worse if right < right_there else better).add((harm, label))
    assert worse == ({each for each in WORSE if each[0] == harm} if not declared else set())
    assert better
