"""Languages without spaces: the words of datatrove's tokenizers, and its filters' verdicts."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from datatrove.pipeline.filters import (
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.utils.word_tokenizers import load_word_tokenizer
from documents import ALL, SHARED
from mutations import mutated
from test_quality import Pair

from fineshards.curation.batch import Batch
from fineshards.curation.steps.fineweb_quality import FineWebQuality
from fineshards.curation.steps.gopher_quality import GopherQuality
from fineshards.curation.steps.gopher_repetition import GopherRepetition
from fineshards.curation.words.tokenizers import parts, tokenizer, words

# datatrove's name of each language, and sentences.
NAMES = {"zh": "cmn_Hani", "ja": "jpn_Jpan", "th": "tha_Thai", "km": "khm_Khmr", "lo": "lao_Laoo"}
SENTENCES = {
    "zh": [
        *("人人生而自由，在尊严和权利上一律平等。", "我来到 北京清华大学！", "他说：“你好吗？”"),
        *("The GPU 有 24GB 显存，价格约3,000.50元。", "研究生命的起源", "- 项目一\n- 項目二……"),
    ],
    "ja": [
        *("すべての人間は、生まれながらにして自由である。", "日本語の  テキスト…そして!"),
        *(
            "東京都に住んでいます。「本当？」",
            "ＡＢＣと㍿テスト　１２３",
            "- 項目一\n・項目二、ｶﾀｶﾅ",
        ),
    ],
    "th": [
        *("มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกัน", "ภาษาไทยไม่มี ช่องว่าง 12.5 บาท เวลา 19:32น."),
        *("เขาไปโรงเรียน ๆ ทุกวัน!", "ในเกียรติศักดิ์และสิทธิ์ (abc) ฯลฯ", "- ข้อหนึ่ง\n- ข้อสอง..."),
    ],
    "km": [
        *("មនុស្សទាំងអស់កើតមកមានសេរីភាពនិងសមភាព", "ភាសាខ្មែរ\u200bមិនមាន ដកឃ្លា ១២.៥ ទេ។"),
        *("ប្រទេសកម្ពុជា (abc) ៛ ៖", "គាត់ទៅសាលារៀន!", "- ចំណុចទីមួយ\n- ចំណុចទីពីរ..."),
    ],
    "lo": [
        *("ມະນຸດທຸກຄົນເກີດມາມີກຽດສັກສີ ສິດທິ ເສລີພາບ", "ພາສາລາວ ບໍ່ມີຍະຫວ່າງ abc 12.5 ກີບ."),
        *("ລາວໄປໂຮງຮຽນໆ ທຸກມື້!", "ແລະຄວາມສະເໝີພາບ (abc)", "- ຂໍ້ໜຶ່ງ\n- ຂໍ້ສອງ..."),
    ],
}
MADE = 60
# Of a language in ../shared.
COMPARED = 10_000 if ALL else 40
LOW: dict[str, Any] = {"min_doc_words": 3, "min_avg_word_length": 1, "max_avg_word_length": 4}


def texts_in(language: str) -> list[str]:
    """The sentences, some with random edits, and documents of the corpus where it is there."""
    draw = random.Random(language)
    several = [
        draw.choice(["\n", "", " ", "\n\n"]).join(draw.choices(SENTENCES[language], k=5))
        for _ in range(MADE)
    ]
    texts = ["", *SENTENCES[language], *several]
    texts += [mutated(text, seed) for seed, text in enumerate(several)]
    if SHARED:
        table = pq.read_table(SHARED / "corpus/multi-00000.parquet", columns=["text", "language"])
        texts += table.filter(pc.field("language") == language)["text"].to_pylist()[:COMPARED]
    return texts


def pairs(language: str) -> list[Pair]:
    """Steps of ours and filters of datatrove, for a language."""
    name, given = NAMES[language], {"language": language}
    stop_words = tokenizer(language).plain(SENTENCES[language][0])
    quality: dict[str, Any] = LOW | {"stop_words": stop_words}
    grams: dict[str, Any] = {"top_n_grams": ((2, 0.1),), "dup_n_grams": ((3, 0.1), (5, 0.05))}
    fineweb: dict[str, Any] = {"line_punct_thr": 0.05, "char_duplicates_ratio": 0.1}
    return [
        Pair(
            "quality",
            GopherQuality(**quality, **given),
            GopherQualityFilter(**quality, language=name),
        ),
        Pair(
            "repetition",
            GopherRepetition(**grams, **given),
            GopherRepetitionFilter(**grams, language=name),
        ),
        Pair(
            "fineweb",
            FineWebQuality(short_line_thr=None, **fineweb, **given),
            FineWebQualityFilter(short_line_thr=999, **fineweb, language=name),
        ),
    ]


@pytest.mark.parametrize("language", NAMES)
def test_words_and_verdicts_are_those_of_datatrove(language: str) -> None:
    theirs, steps, verdicts = load_word_tokenizer(NAMES[language]), pairs(language), set()
    texts = texts_in(language)
    for start in range(0, len(texts), 5):
        few = Batch.of_texts(texts[start : start + 5])
        for text, found in zip(few.strings, words(few, language), strict=True):
            assert found.strings == theirs.word_tokenize(text), text[:4000]
            assert found.strings == tokenizer(language).plain(text)
        for pair in steps:
            # Ours divides texts without words otherwise, see the docstrings.
            few = few.keep(few_with_words(few, language))
            pair.must_agree(few)
            verdicts |= {(pair.name, each) for each in pair.step.apply(few).reasons or ()}
    assert len(verdicts) > 2 * len(steps)


def few_with_words(batch: Batch, language: str) -> Any:
    import numpy as np

    return np.array([len(each.numbers) > 0 for each in words(batch, language)], np.bool_)


def test_long_texts_are_cut_at_line_ends() -> None:
    """datatrove cuts them within lines, at about the same length."""
    line = "日本語のテキストを長くする。" * 40 + "\n"
    text = line * 40 + line.strip() * 80
    assert len(text.encode()) > 100_000
    found = list(parts(text))
    assert "".join(found) == text
    assert max(len(part.encode()) for part in found) <= 40_000
    cut = tokenizer("ja")
    assert cut.plain(text) == [word for part in found for word in cut.plain(part)]
    assert cut.plain(line * 40) == cut.plain(line) * 40


def test_chinese_words_do_not_depend_on_a_file_that_others_write(tmp_path: Path) -> None:
    """jieba takes its table from such a file if there is one."""
    (tmp_path / "jieba.cache").write_bytes(b"no such table")
    program = (
        "from fineshards.curation.words.tokenizers import tokenizer\n"
        "print(tokenizer('zh').plain('我来到北京清华大学'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['我', '来到', '北京', '清华大学']\n"
    assert not done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["jieba.cache"]


@pytest.mark.parametrize("language", NAMES)
def test_nothing_is_printed_or_left(language: str, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from fineshards.curation.words.tokenizers import pins, tokenizer\n"
        "text, language = sys.argv[1:]\n"
        "assert len(pins(language)) > 2 and len(tokenizer(language).plain(text)) > 2"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, SENTENCES[language][0], language],
        env=os.environ | {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert not list(tmp_path.iterdir())
