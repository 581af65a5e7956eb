"""Steps of other people's code: functions of the user, and which of datatrove's blocks pass."""

import hashlib
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fineshards.curation.batch import Batch
from fineshards.curation.recipe import load_steps, make_step
from fineshards.curation.step import Outcome
from fineshards.curation.steps.user_function import UserFunction, _function
from fineshards.errors import InputError, UsageError

SOURCE = """
SEEN = []

def judge(document, least=3):
    SEEN.append(document)
    return len(document["text"]) >= least

def why(document):
    return document["score"] > 1, "low_score"

def kept(document):
    return True, None

def upper(document):
    return document["text"].upper()

def none(document):
    return None

def odd(document):
    return 1

def broken(document):
    return 1 / document["row"]

def surrogate(document):
    return "\\ud800"

def leaves(document):
    raise SystemExit

class Steps:
    @staticmethod
    def empty(document):
        return ""

number = 5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current folder, which is not on the import path."""
    (tmp_path / "my_steps.py").write_text(SOURCE)
    (tmp_path / "fails_1.py").write_text("raise ValueError(3)")
    (tmp_path / "fails_2.py").write_text("raise SystemExit(0)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    forget_modules()  # another test may have left its own
    yield "my_steps"
    forget_modules()


def forget_modules() -> None:
    for name in ("my_steps", "named", "defined"):
        sys.modules.pop(name, None)
    _function.cache_clear()


def batch(**columns: Any) -> Batch:
    arrays = {
        name: values if isinstance(values, pa.Array) else pa.array(values)
        for name, values in columns.items()
    }
    texts = pa.array(["one", "three", "x"], pa.large_string())
    return Batch(4, np.array([0, 5, 9]), texts, arrays)


def test_true_and_false_keep_and_drop(module: str) -> None:
    step = UserFunction(f"{module}:judge", ("score",), {"least": 2})
    outcome = step.apply(batch(score=[1, 2, None]))
    assert outcome == Outcome([None, None, "judge"])
    seen = sys.modules[module].SEEN
    assert seen[0] == {"score": 1, "text": "one", "file": 4, "row": 0}
    assert seen[2] == {"score": None, "text": "x", "file": 4, "row": 9}
    assert UserFunction(f"{module}:judge").apply(batch()).reasons == [None, None, "judge"]


PARTIAL = "from functools import partial\nfrom defined import judge\nstep = partial(judge, least=2)"
OBJECT = "from defined import Least\nstep = Least()"


@pytest.mark.parametrize("source", ["from defined import judge as step", PARTIAL, OBJECT])
def test_an_edit_is_noticed_where_the_function_is_defined(
    module: str, tmp_path: Path, source: str
) -> None:
    called = "\nclass Least:\n    def __call__(self, document):\n        return True\n"
    (tmp_path / "defined.py").write_text(SOURCE + called)
    (tmp_path / "named.py").write_text(source)
    step = UserFunction("named:step")
    before = step.pins()
    assert step.apply(batch()).reasons[:2] == [None, None]
    (tmp_path / "defined.py").write_text((SOURCE + called).replace("least=3", "least=4"))
    after = step.pins()
    assert before.keys() == after.keys() == {"named:step", "named:step in defined.py"}
    assert [name for name in before if before[name] != after[name]] == ["named:step in defined.py"]


def test_times_are_those_of_python_without_nanoseconds(module: str) -> None:
    times = pa.array([1_001, None, 2_999], pa.timestamp("ns"))
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], times.cast(pa.int64()).cast(pa.duration("ns")))
    columns = {"t": times, "l": lists}
    UserFunction(f"{module}:judge", ("t", "l")).apply(batch(**columns))
    seen = sys.modules[module].SEEN
    assert [type(each["t"]) for each in seen] == [datetime, type(None), datetime]
    assert seen[0]["t"] == datetime(1970, 1, 1, 0, 0, 0, 1)
    assert seen[2]["t"] == datetime(1970, 1, 1, 0, 0, 0, 2)
    assert [each["l"] for each in seen] == [
        [timedelta(microseconds=1)],
        [None],
        [timedelta(0, 0, 2)],
    ]


def test_a_time_that_python_cannot_hold_names_its_row(module: str) -> None:
    columns = {"t": pa.array([0, 2**62, 0], pa.timestamp("s"))}
    with pytest.raises(
        InputError, match=r"row 5: its 't' of type timestamp\[s\] cannot be a value"
    ):
        UserFunction(f"{module}:judge", ("t",)).apply(batch(**columns))


def test_other_answers(module: str) -> None:
    outcome = UserFunction(f"{module}:why", ("score",)).apply(batch(score=[1.5, 0.5, 2]))
    assert outcome.reasons == [None, "low_score", None]
    assert UserFunction(f"{module}:kept").apply(batch()) == Outcome([None] * 3)
    assert UserFunction(f"{module}:none").apply(batch()).reasons == ["none"] * 3
    outcome = UserFunction(f"{module}:upper").apply(batch())
    assert outcome == Outcome([None] * 3, ["ONE", "THREE", "X"])
    assert UserFunction(f"{module}:Steps.empty").apply(batch()).texts == [""] * 3


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            "odd",
            "file 4 of the input, row 0: my_steps:odd failed with TypeError: it returned 1, exp",
        ),
        ("broken", "row 0: my_steps:broken failed with ZeroDivisionError: division by zero"),
        ("surrogate", "row 0: my_steps:surrogate failed with UnicodeEncodeError"),
        ("leaves", "row 0: my_steps:leaves failed with SystemExit"),
        (
            "why",
            "row 0: my_steps:why failed with KeyError: 'score'. If it is a column, name it in col",
        ),
    ],
)
def test_a_function_that_fails_is_named_with_the_row(module: str, function: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        UserFunction(f"{module}:{function}").apply(batch())


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ("my_steps:nothing", "my_steps:nothing cannot be imported: module 'my_steps' has no attr"),
        ("no_such_module:x", "no_such_module:x cannot be imported: No module named"),
        ("my_steps:number", "my_steps:number is int, expected a function"),
        ("fails_1:x", "fails_1:x cannot be imported: ValueError: 3"),
        ("fails_2:x", "fails_2:x cannot be imported: SystemExit: 0"),
    ],
)
def test_a_function_that_is_not_there_is_named(module: str, use: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        UserFunction(use).pins()


@pytest.mark.parametrize("use", ["my steps:x", "a.b", ":x", "a:", "a:b:c", "os;x:y"])
def test_names_of_functions_are_checked(use: str) -> None:
    with pytest.raises(UsageError, match=r"expected package.module:function"):
        UserFunction(use)


def test_columns_that_the_function_gets_anyway_are_refused() -> None:
    with pytest.raises(UsageError, match=r"columns is .'text'., expected other columns than text"):
        UserFunction("a:b", ("text",))


def test_the_source_is_pinned(module: str, tmp_path: Path) -> None:
    path = tmp_path / "my_steps.py"
    expected = {f"{module}:judge": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert UserFunction(f"{module}:judge").pins() == expected
    assert str(tmp_path) not in sys.path


def test_a_job_makes_the_step_of_its_record(module: str) -> None:
    named = make_step(f"{module}:judge", {"columns": ["score"], "least": 4}, "recipe, step 1")
    [again] = load_steps([named.record()])
    assert again.step == named.step
    assert pickle.loads(pickle.dumps(named.step)) == named.step
    outcome = again.step.apply(batch(score=[1, 2, 3]))  # type: ignore[attr-defined]
    assert outcome.reasons == ["judge", None, "judge"]


HELPER = "def long(text):\n    return len(text) > 3\n"
# What the user's files have, by name; how the function's module comes to its helper; which file.
LAYOUTS: list[tuple[str, dict[str, str], str]] = [
    ("flat", {"flat.py": "import helper"}, "helper.py"),
    (
        "lazy",
        {"lazy.py": "def judge(d):\n    from helper import long\n    return True"},
        "helper.py",
    ),
    (
        "branch",
        {"branch.py": "if False:\n    import a\n", "a.py": "import b", "b.py": "import a, helper"},
        "helper.py",
    ),
    ("pkg.f", {"pkg/__init__.py": "", "pkg/f.py": "from . import helper"}, "pkg/helper.py"),
    ("pkg.f", {"pkg/__init__.py": "from .helper import long", "pkg/f.py": ""}, "pkg/helper.py"),
    (
        "pkg.sub.f",
        {"pkg/sub/f.py": "from ..helper import long"},  # namespace packages
        "pkg/helper.py",
    ),
    ("pkg.f", {"pkg/f.py": "import pkg.sub.helper"}, "pkg/sub/helper.py"),
    ("pkg.f", {"pkg/f.py": "from pkg import sub"}, "pkg/sub/__init__.py"),
]


@pytest.mark.parametrize(("module", "files", "changed"), LAYOUTS)
def test_what_a_function_imports_of_the_users_own_is_pinned(
    tmp_path: Path, module: str, files: dict[str, str], changed: str
) -> None:
    """In a new process each time, as a resume is one. Other files of the folder are not pinned."""
    path = tmp_path / changed
    given = {str(path): HELPER, str(tmp_path / "other/alone.py"): "", **files}
    name = f"{module.replace('.', '/')}.py"
    given[name] = files[name] + ("" if "def judge" in files[name] else "\ndef judge(d): return 1\n")
    for each, content in given.items():
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_text(content)

    def pins() -> dict[str, str]:
        program = (
            "import json\nfrom fineshards.curation.steps.user_function import UserFunction\n"
            f"print(json.dumps(UserFunction('{module}:judge').pins()))"
        )
        found = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=True
        )
        return dict(json.loads(found.stdout))

    before = pins()
    path.write_text(HELPER.replace("3", "9"))
    (tmp_path / "other/alone.py").write_text("changed = True")
    after = pins()
    assert before.keys() == after.keys()
    use = f"{module}:judge"
    found = {each for each in before if before[each] != after[each]}
    assert f"{use} in {changed}" in found
    assert all(each.endswith(path.name) for each in found)
