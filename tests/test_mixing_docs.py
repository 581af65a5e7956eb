"""The examples of docs/mixing.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.made_up_dataset import make_dataset
from fineshards.storage.base import open_storage

PAGE = Path(__file__).parent.parent / "docs/mixing.md"


def test_the_examples_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, samples in (("web", 488), ("code", 400)):
        folder = open_storage(str(tmp_path / "out" / name))
        make_dataset(folder, samples * 2048 + 1, shard_tokens=10**5)
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text()
    names: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(example, names)
    mix = names["mix"]
    # What the comments say.
    for line in re.findall(r"^(mix[.\[].*?)  +# (.*)$", page, re.MULTILINE):
        code, said = line
        if not said.startswith("two"):
            value = eval(code, {"mix": mix})
            shown = re.match(r"\(.*?\)|\{.*?\}", said)
            assert shown is not None
            assert eval(shown[0]) == value
    shown_plan = re.search(r"^    web .*$", page, re.MULTILINE)
    assert shown_plan is not None
    assert shown_plan[0].split() in [line.split() for line in capsys.readouterr().out.splitlines()]
