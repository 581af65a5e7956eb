"""`verify --sample` measures again how alike near duplicates are."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.damage import edit_decisions

import fineshards

Decisions = list[dict[str, Any]]
WORDS = [f"w{letter}{other}" for letter in "abcdefghij" for other in "abcdefghij"]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Texts of 60 different words: the third shares 56 with the second, and 44 with the first."""
    texts = [" ".join(WORDS[start : start + 60]) for start in (20, 0, 4)]
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (tmp_path / "recipe.toml").write_text(
        '[[steps]]\nuse = "minhash"\nn_grams = 1\nbuckets = 100\nhashes_per_bucket = 1\n'
    )
    out = tmp_path / "out"
    fineshards.build(input=source, output=out, recipe=tmp_path / "recipe.toml", shard_tokens=1000)
    return out


def less_alike(decision: dict[str, Any]) -> None:
    decision["similarity"] -= 0.001


def not_compared(decision: dict[str, Any]) -> None:
    decision["similarity"] = None


def unlike(decision: dict[str, Any]) -> None:
    decision["witness_row"] = 0


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (None, None),
        (less_alike, "row 1 of {source}, is 0.875 alike, and 0.874"),
        (not_compared, "row 1 of {source}, is 0.875 alike, and None is recorded"),
        (unlike, "row 0 of {source}, is 0.5789 alike, and 0.875 is recorded"),
    ],
)
def test_another_similarity_than_the_texts_have_is_found(
    dataset: Path, damage: Callable[[dict[str, Any]], None] | None, sentence: str | None
) -> None:
    def change(decisions: Decisions) -> None:
        (only,) = decisions
        assert only["similarity"] == 0.875  # 56 / 64
        if damage is not None:
            damage(only)

    edit_decisions(dataset, 0, change)
    problems = fineshards.verify(dataset, sample=100).problems
    if sentence is None:
        assert problems == []
    else:
        expected = sentence.format(source=dataset.parent / "a.jsonl")
        assert any(expected in problem for problem in problems), problems
