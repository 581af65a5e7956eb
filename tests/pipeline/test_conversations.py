"""Conversations through a whole job: tokens and loss masks against a plain walk over the input."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from support.build_here import build_here
from support.chat_families import FAMILIES
from support.checkout import ROOT
from support.conversations import TEMPLATE, Conversation, check, made_up, write
from support.damage import edit_manifest
from support.kills import crashes_of
from support.oracle import files_in

import fineshards
from fineshards.cli.cli import main
from fineshards.errors import FineshardsError, InputError, UsageError
from fineshards.shards.job.manifest import Manifest
from fineshards.storage.open import open_storage

Build = Callable[..., Manifest]


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, list[Conversation]]:
    """A Parquet file of structs and one of JSON lines, and their conversations by path."""
    found = {"a.parquet": made_up(120, 1), "b.jsonl": made_up(80, 2)}
    return {str(write(tmp_path / name, each)): each for name, each in found.items()}


@pytest.fixture
def build(tmp_path: Path) -> Build:
    (tmp_path / "chat.jinja").write_text(TEMPLATE)

    def run(**options: Any) -> Manifest:
        given = {"output": tmp_path / "out", "chat_template": str(tmp_path / "chat.jinja")}
        return build_here(**{**given, "shard_tokens": 5_003, "block_bytes": 4_000, **options})

    return run


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 3},
        {"block_bytes": 1 << 20, "test_shards": 1, "dtype": "uint32"},
        {"shuffle_seed": 3, "memory_bytes": 1 << 16},
        {"shard_tokens": 203},
    ],
    ids=["blocks", "one", "shuffled", "cut"],
)
def test_every_token_has_the_bit_of_its_conversation(
    build: Build, tmp_path: Path, inputs: dict[str, list[Conversation]], options: dict[str, Any]
) -> None:
    manifest = build(input=[*inputs], **options)
    folder = tmp_path / "out"
    assert check(folder, inputs) == 200
    masks = [np.load(path) for path in sorted((folder / "metadata/masks").iterdir())]
    learned = sum(int(np.unpackbits(mask).sum()) for mask in masks)
    assert learned == manifest.learned == manifest.totals["learned"]
    assert fineshards.verify(folder, sample="100%").problems == []
    stored = json.loads((folder / "metadata/manifest.json").read_text())
    jsonschema.validate(stored, json.loads((ROOT / "docs/manifest.schema.json").read_text()))


def test_a_dataset_without_reasoning_is_that_of_conversations_without_it(
    build: Build, tmp_path: Path
) -> None:
    """In each generation; and the flag is part of the job."""
    first, second = tmp_path / "a.parquet", tmp_path / "b.jsonl"
    inputs = {str(first): made_up(40, 1), str(second): made_up(40, 2)}
    for path, conversations in inputs.items():
        thoughtful = json.loads(json.dumps(conversations))
        for answer in (turns[-2] for turns in thoughtful):
            answer |= {"content": f"<think>Hm.</think>\n\n{answer['content']}", "thinking": "Hm."}
        write(Path(path), thoughtful)
    build(input=first, drop_reasoning=True)
    build_here(input=second, output=tmp_path / "out", append=True)
    assert check(tmp_path / "out", inputs) == 80
    assert fineshards.verify(tmp_path / "out", sample="100%").problems == []
    with pytest.raises(UsageError, match="--drop_reasoning goes with --chat_template"):
        build(input=first, chat_template=None, drop_reasoning=True)
    with pytest.raises(FineshardsError, match="--drop_reasoning: was True, now False"):
        build(input=first)


def test_learned_tokens_of_files_are_those_of_shards(
    build: Build, tmp_path: Path, inputs: dict[str, list[Conversation]]
) -> None:
    build(input=[*inputs])

    def edit(content: dict[str, Any]) -> None:
        content["reports"][0]["counts"]["learned"] += 1
        content["totals"]["learned"] += 1

    edit_manifest(tmp_path / "out", edit)
    problems = fineshards.verify(tmp_path / "out").problems
    assert any(" learned tokens, the shards " in problem for problem in problems)


def test_every_format_gives_the_same_files(build: Build, tmp_path: Path) -> None:
    """Structs, with the nulls that Parquet fills them with, and JSON, in a column or beside it."""
    conversations = made_up(30, 5)
    conversations[3][0]["name"] = "Ann"
    conversations[4][0]["tool_calls"] = [{"id": "a"}, {"type": "b"}, {"id": None, "type": "b"}]
    (tmp_path / "calls.jinja").write_text(
        TEMPLATE + "{{ (messages[0].tool_calls or []) | tojson }}"
    )
    rows: list[dict[str, Any]] = [{"messages": each} for each in conversations]
    assert pa.table({"messages": conversations})["messages"][0].as_py()[0]["name"] is None
    shards = builds_of_each_format(build, tmp_path, rows, str(tmp_path / "calls.jinja"))
    assert all(each == shards[0] for each in shards)


def builds_of_each_format(
    build: Build, tmp_path: Path, rows: list[dict[str, Any]], template: str
) -> list[dict[str, bytes]]:
    """The shards and masks of the same rows in five encodings."""
    structs = pa.Table.from_pylist(rows)
    texts = [
        row | {"messages": row["messages"] and json.dumps(row["messages"], ensure_ascii=False)}
        for row in rows
    ]
    pq.write_table(structs, tmp_path / "structs.parquet")
    pq.write_table(pa.Table.from_pylist(texts), tmp_path / "texts.parquet")
    with pa.ipc.new_file(tmp_path / "x.arrow", structs.schema) as writer:
        writer.write_table(structs)
    pacsv.write_csv(pa.Table.from_pylist(texts), tmp_path / "x.csv")
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = []
    for name in ("structs.parquet", "texts.parquet", "x.arrow", "x.csv", "x.jsonl"):
        folder = tmp_path / name.replace(".", "-")
        build(input=tmp_path / name, output=folder, chat_template=template, max_bad_rows=2)
        counts = Manifest.load_finished(open_storage(str(folder))).counts()
        assert counts.rows == len(rows)
        found.append(
            files_in(folder, ("test", "train", "metadata/masks"))
            | {"counts": f"{counts.nulls} {counts.rejected}".encode()}
        )
    return found


@pytest.mark.parametrize(
    ("names", "alone"),
    [
        (("prompt", "completion"), False),
        (("prompt", "completion"), True),
        (("instruction", "output", "input"), True),
    ],
)
def test_every_format_takes_a_pair_where_messages_are_null(
    build: Build, tmp_path: Path, names: tuple[str, ...], alone: bool
) -> None:
    """alone: whether no row has messages."""
    prompt, completion, *_ = names
    rows: list[dict[str, Any]] = [
        {"messages": each, prompt: f"Say {number}.", completion: f"{number}!"}
        for number, each in enumerate(made_up(30, 5))
    ]
    for row in rows if alone else rows[::2]:
        row["messages"] = None
    rows[4] |= {prompt: None, completion: None}
    rows[6] |= {completion: None}
    rows[7] |= {prompt: None}
    for number, row in enumerate(rows):
        row |= dict.fromkeys(names[2:], [None, "", "Loudly."][number % 3 if number != 4 else 0])
    shards = builds_of_each_format(build, tmp_path, rows, str(tmp_path / "chat.jinja"))
    assert all(each == shards[0] for each in shards)
    assert shards[0]["counts"] == (b"1 2" if alone else b"1 1")


@pytest.mark.parametrize("also", [{}, {"completion": ["Ha", "Ho", None]}])
def test_a_pair_that_no_row_needs_rejects_none(
    build: Build, tmp_path: Path, also: dict[str, list[str | None]]
) -> None:
    conversations = [*made_up(2, 5), None]
    offsets, data = np.array([0, 1, 3, 5], np.int32), b"H\xff\xfeHi"
    prompts = pa.StringArray.from_buffers(3, pa.py_buffer(offsets), pa.py_buffer(data))
    table = pa.table({"messages": conversations, "prompt": prompts} | also)
    pq.write_table(table, tmp_path / "c.parquet")
    counts = build(input=tmp_path / "c.parquet", max_bad_rows=1).counts()
    assert (counts.documents, counts.rejected) == (2, 1)


@pytest.mark.parametrize("also", [{}, {"messages": [None, None]}])
def test_a_pair_that_is_not_utf8_is_a_bad_row_and_says_so(
    build: Build, tmp_path: Path, also: dict[str, list[None]]
) -> None:
    data = pa.py_buffer(b"H\xff\xfe")
    prompts = pa.StringArray.from_buffers(2, pa.py_buffer(np.array([0, 1, 3], np.int32)), data)
    table = pa.table({"prompt": prompts, "completion": ["Ha", "Ho"]} | also)
    pq.write_table(table, tmp_path / "c.parquet")
    with pytest.raises(InputError, match="row 1: its conversation is not valid UTF-8"):
        build(input=tmp_path / "c.parquet")
    counts = build(input=tmp_path / "c.parquet", max_bad_rows=1, overwrite=True).counts()
    assert (counts.documents, counts.rejected, counts.nulls) == (1, 1, 0)


@pytest.mark.parametrize("name", ["c.parquet", "c.arrow", "c.csv"])
def test_columns_of_the_same_name_are_refused_where_they_are_needed(
    build: Build, tmp_path: Path, name: str
) -> None:
    messages = [json.dumps(each) for each in made_up(3, 5)]

    def write_twice(**columns: list[str]) -> None:
        table = pa.table([*columns.values(), ["a", "b", "c"]], names=[*columns, "prompt"])
        if name == "c.csv":
            pacsv.write_csv(table, tmp_path / name)
        elif name == "c.arrow":
            with pa.ipc.new_file(tmp_path / name, table.schema) as writer:
                writer.write_table(table)
        else:
            pq.write_table(table, tmp_path / name)

    write_twice(messages=messages, prompt=["a", "b", "c"])
    assert build(input=tmp_path / name).counts().documents == 3
    write_twice(prompt=["a", "b", "c"], completion=["d", "e", "f"])
    with pytest.raises(InputError, match="has several columns 'prompt'"):
        build(input=tmp_path / name, overwrite=True)


def test_a_column_of_messages_named_as_the_pair_has_its_type_checked(
    build: Build, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"prompt": [1, 2]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match="'prompt' has type int64, expected lists of messages"):
        build(input=tmp_path / "c.parquet", text_column="prompt")


def test_maps_are_refused_because_they_would_become_lists_of_pairs(
    build: Build, tmp_path: Path
) -> None:
    call = pa.struct({"arguments": pa.map_(pa.string(), pa.string())})
    message = pa.struct({"role": pa.string(), "content": pa.string(), "call": call})
    table = pa.table({"messages": pa.array([[]], pa.list_(message))})
    pq.write_table(table, tmp_path / "maps.parquet")
    with pytest.raises(
        InputError, match=r"'messages' has type .*map.*, expected lists .* without maps"
    ):
        build(input=tmp_path / "maps.parquet")


@pytest.mark.parametrize("names", [("prompt", "completion"), ("instruction", "output", "input")])
def test_columns_in_place_of_messages_are_two_messages(
    build: Build, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Alpaca's input is a line of its own after the instruction, if there is any."""
    texts = [(f"Say {n}.", f"{n}!", ["", "Loudly."][n % 2]) for n in range(20)]
    rows = [dict(zip(names, row, strict=False)) for row in texts]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "pairs.parquet")
    build(input=tmp_path / "pairs.parquet")
    expected = [
        [
            {"role": "user", "content": f"{said}\n{added}" if added and names[2:] else said},
            {"role": "assistant", "content": answer},
        ]
        for said, answer, added in texts
    ]
    assert check(tmp_path / "out", {str(tmp_path / "pairs.parquet"): expected}) == 20


def test_conversations_that_cannot_be_encoded_are_bad_rows(build: Build, tmp_path: Path) -> None:
    """Those without roles as well as those that the template refuses."""
    refusing = "{% if messages[0].content == 'no' %}{{ raise_exception('not so') }}{% endif %}"
    (tmp_path / "refusing.jinja").write_text(refusing + TEMPLATE)
    conversations: list[Any] = made_up(60, 7)
    conversations[5] = [{"content": "who?"}]
    conversations[9] = "none"
    conversations[31][0]["content"] = "no"
    conversations[40] = None
    path = write(tmp_path / "c.jsonl", conversations)
    options = {"chat_template": str(tmp_path / "refusing.jinja"), "input": path}
    with pytest.raises(InputError, match=r"c.jsonl, line 6, row 5: message 1 has no role"):
        build(**options)
    manifest = build(**options, max_bad_rows=3, overwrite=True)
    counts = manifest.counts()
    assert (counts.documents, counts.rejected, counts.nulls, counts.rows) == (56, 3, 1, 60)
    folder = tmp_path / "out"
    (listed,) = (folder / "metadata/rejected").iterdir()
    assert [json.loads(line)["row"] for line in listed.read_text().splitlines()] == [5, 9, 31]
    assert check(folder, {str(path): conversations}) == 56
    assert fineshards.verify(folder, sample="100%").problems == []
    before = files_in(folder, ("train", "metadata"))
    (folder / "train/train_0000.npy").unlink()
    listed.unlink()
    assert fineshards.repair(folder).left == []
    assert files_in(folder, ("train", "metadata")) == before


@pytest.mark.parametrize("learn", ["assistant", "nobody"])
def test_a_file_without_learned_tokens_is_refused_by_its_name(
    build: Build, tmp_path: Path, learn: str
) -> None:
    asked = [[{"role": "user", "content": f"question {n}"}] for n in range(9)]
    path = write(tmp_path / "asked.jsonl", asked)
    told = write(tmp_path / "told.jsonl", made_up(9, 1))
    with pytest.raises(InputError, match=r"asked.jsonl: none of the \d+ tokens of its 9 conv"):
        build(input=[path, told], learn=learn)
    manifest = build(input=[path, told], learn=learn, allow_constant_mask=True, overwrite=True)
    assert bool(manifest.learned) == (learn == "assistant")
    assert fineshards.verify(tmp_path / "out").problems == []


def test_a_file_with_nothing_but_learned_tokens_is_refused(build: Build, tmp_path: Path) -> None:
    (tmp_path / "all.jinja").write_text(
        "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}"
    )
    path = write(tmp_path / "c.jsonl", made_up(9, 1))
    with pytest.raises(InputError, match=r"c.jsonl: all of the 1,\d+ tokens of its 9 conv"):
        build(input=path, chat_template=str(tmp_path / "all.jinja"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learn": "user", "chat_template": None}, "--learn goes with --chat_template"),
        ({"learn": "assistant,"}, "--learn must be roles"),
        ({"text_template": "{a}"}, "exclude each other"),
        ({"recipe": "steps.toml"}, r"step 1 \(ftfy\) rewrites texts"),
        ({"input": "plain.txt"}, "plain.txt holds no conversations"),
    ],
)
def test_what_means_nothing_for_conversations_is_refused(
    build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.txt").write_text("text\n")
    Path("steps.toml").write_text("[[steps]]\nuse = 'ftfy'\n")
    write(tmp_path / "c.jsonl", made_up(3, 1))
    with pytest.raises(UsageError, match=message):
        build(**{"input": "c.jsonl", **options})


def test_stats_has_the_share_of_learned_tokens(
    build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = build(input=write(tmp_path / "c.jsonl", made_up(20, 1)), statistics=True)
    assert main(["stats", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["learned"]
    assert manifest.learned
    assert found == manifest.learned / manifest.totals["tokens"]
    assert main(["stats", str(tmp_path / "out")]) == 0
    assert f"  learned    {found:.1%} of the tokens\n" in capsys.readouterr().out


def test_inspect_shows_what_is_learned(
    build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Yes"}]
    build(input=write(tmp_path / "c.jsonl", [said]), split_key="row", test_fraction=0)
    assert main(["inspect", str(tmp_path / "out"), "--document", "0"]) == 0
    shown = capsys.readouterr().out
    assert "Hello?<|im_end|>\n<|im_start|>assistant\n⟦Yes⟧<|im_end|>\n" in shown
    assert main(["inspect", str(tmp_path / "out")]) == 0
    assert "learned    1 token" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("family", "marked", "stops"),
    [
        ("qwen2.5", "{{ m.content + eos_token }}", True),
        ("qwen2.5", "{{ m.content }}", False),
        ("llama2", "{{ m.content + '<|end|>' }}", False),
        ("llama2", "{{ m.content + '[/ANSWER]' }}", False),
        ("llama2", "{{ m.content + eos_token }}", True),
    ],
)
def test_a_template_that_teaches_no_stop_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, family: str, marked: str, stops: bool
) -> None:
    (tmp_path / "chat.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
        + marked
        + "{% endgeneration %}{{ eos_token }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    options: dict[str, Any] = {
        "input": [write(tmp_path / "a.jsonl", made_up(30, 1))],
        "tokenizer": str(FAMILIES[family].save(tmp_path / "model")),
        "eot_token": FAMILIES[family].eot,
        "chat_template": str(tmp_path / "chat.jinja"),
    }
    build_here(output=tmp_path / "out", workers=2, **options)
    assert caplog.text.count("so a model does not learn to stop") == (not stops)
    assert ("the tokenizer reads as ordinary" in caplog.text) == ("<|end|>" in marked)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_conversations_without_a_template_are_told_of_it(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, made_up(3, 1))
    hint = r"--text_column of fineshards build\. For conversations, add --chat_template"
    with pytest.raises(InputError, match=hint):
        build_here(input=[path], output=tmp_path / "out")


@pytest.mark.curation
def test_steps_see_the_json_of_a_conversation(build: Build, tmp_path: Path) -> None:
    conversations = made_up(40, 3)
    paths = [write(tmp_path / name, conversations) for name in ("a.parquet", "b.jsonl")]
    manifest = build(input=paths, where='text LIKE \'%"role":"system"%\'', dedup="exact")
    kept = [each for each in conversations if each[0]["role"] == "system"]
    counts = manifest.counts()
    assert (counts.documents, counts.documents_dropped) == (len(kept), 80 - len(kept))
    assert check(tmp_path / "out", {str(path): conversations for path in paths}) == len(kept)
    assert fineshards.verify(tmp_path / "out", sample="100%").problems == []


@pytest.mark.kills
def test_a_build_killed_before_any_file_operation_finishes_its_masks(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    path = write(tmp_path / "c.parquet", made_up(30, 1))
    command = ["build", f"--input={path}", "--output=OUT", "--shard_tokens=2000"]
    command += [f"--chat_template={tmp_path}/chat.jinja", "--block_bytes=1"]
    crashes = crashes_of(tmp_path, command, step=3)
    assert len(crashes) > 5
    masks = []
    for crash in crashes:
        assert (crash["status"], crash["rewritten"]) == (0, []), crash
        folder = Path(crash["folder"])
        masks.append(files_in(folder, ("metadata/masks",)))
        assert check(folder, {str(path): made_up(30, 1)}) == 30
    assert all(each == masks[0] for each in masks)
