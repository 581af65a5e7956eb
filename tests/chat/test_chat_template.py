"""Where a chat template is found."""

import json
import shutil
from pathlib import Path

import pytest
from support.chat_families import FAMILIES
from support.fresh_interpreter import run_program
from support.hub_server import HubServer

from fineshards.chat.chat_template import ChatTemplate, find_chat_template
from fineshards.chat.rendering import Renderer
from fineshards.errors import UsageError

STRINGS = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None}
PAIRS = (("bos_token", "<s>"), ("eos_token", "</s>"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_text("{}")
    config = STRINGS | {"chat_template": "of the config"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_template_comes_from_the_tokenizer_a_file_or_by_name(folder: Path) -> None:
    places = [str(folder), str(folder / "tokenizer.json")]
    for place in places:
        assert find_chat_template("tokenizer", place) == ChatTemplate("of the config", PAIRS)
    (folder / "chat_template.jinja").write_text("of the file\n")
    for place in places:
        assert find_chat_template("tokenizer", place) == ChatTemplate("of the file\n", PAIRS)
    other = str(folder / "other.jinja")
    Path(other).write_text("other")
    assert find_chat_template(other, places[0]) == ChatTemplate("other", PAIRS)
    assert find_chat_template(other, "cl100k_base") == ChatTemplate("other")
    config = str(folder / "tokenizer_config.json")
    assert find_chat_template(config, "cl100k_base") == ChatTemplate("of the config", PAIRS)
    chatml = find_chat_template("chatml", places[0])
    assert chatml.special_strings == PAIRS
    assert Renderer(chatml.text, {}).render([{"role": "user", "content": "Hi"}], None) == (
        "<|im_start|>user\nHi<|im_end|>\n"
    )


def test_the_template_for_tools_is_taken_where_there_are_tools(tmp_path: Path) -> None:
    texts = {"default": "\n  {% if 1 %}default{% endif %}\n  ", "tool_use": "{{ tools }}\n\n"}
    listed = [{"name": name, "template": text} for name, text in texts.items()]
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"chat_template": listed}))
    both = Renderer(find_chat_template(str(path), "cl100k_base").text, {})
    for tools, name in ((None, "default"), ([{"a": 1}], "tool_use")):
        assert both.render([], tools) == Renderer(texts[name], {}).render([], tools)


@pytest.mark.parametrize(
    ("value", "tokenizer", "sentence"),
    [
        ("tokenizer", "cl100k_base", "cl100k_base has no chat template"),
        ("tokenizer", "bare", "bare has no chat template, in chat_template.jinja or"),
        ("chatmk", "cl100k_base", "not one of tokenizer, chatml. Did you mean chatml?"),
        ("bare/tokenizer.json", "cl100k_base", "the file has no chat_template"),
        ("bare/latin.jinja", "cl100k_base", "bare/latin.jinja is not UTF-8"),
        ("bare/latin.json", "cl100k_base", "bare/latin.json is not JSON"),
        ("bare/list.json", "cl100k_base", "bare/list.json is not a JSON object"),
    ],
)
def test_a_template_that_is_not_found_is_one_sentence(
    value: str, tokenizer: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bare").mkdir()
    Path("bare/tokenizer.json").write_text("{}")
    Path("bare/latin.jinja").write_bytes(b"\xe9")
    Path("bare/latin.json").write_text("{")
    Path("bare/list.json").write_text("[]")
    with pytest.raises(UsageError) as caught:
        find_chat_template(value, tokenizer)
    assert sentence in str(caught.value)


def test_a_template_has_no_clock_and_no_chance() -> None:
    """Where a template asks whether there is a clock, its own fixed date stands."""
    messages = [{"role": "user", "content": "Hi"}]
    assert "26 Jul 2024" in Renderer(
        "{{ '26 Jul 2024' if strftime_now is not defined else strftime_now('%d') }}", {}
    ).render(messages, None)
    assert Renderer(FAMILIES["llama3"].template, {}).render(messages, None) != ""
    with pytest.raises(UsageError, match="asks for the time"):
        Renderer("{% if x is defined %}{{ strftime_now('%d') }}{% endif %}", {})


@pytest.mark.long
def test_the_files_of_a_template_come_from_the_hub_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "from fineshards.sources.places.hub import fetch_tokenizer\n"
        "from fineshards.chat.chat_template import FILES, find_chat_template\n"
        "print(find_chat_template('tokenizer', fetch_tokenizer('mine/chat', FILES)).text)\n"
    )
    with HubServer() as hub:
        hub.push("mine/chat", folder)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
        for offline in ("0", "0", "1"):
            monkeypatch.setenv("HF_HUB_OFFLINE", offline)
            done = run_program(program)
            assert (done.stdout, done.returncode) == ("of the config\n", 0), done.stderr
        assert len(hub.paths("GET", "/mine/chat/resolve/")) == 2
        # A commit has no file that it once did not have; only a branch is asked for again.
        assert len(hub.paths("HEAD", "/mine/chat/resolve/")) == 4
        # Nor need a cache that other tools have filled note that there is no chat_template.jinja.
        (snapshot,) = (tmp_path / "cache").glob("hub/*/snapshots/*")
        shutil.rmtree(snapshot.parent.parent / ".no_exist")
        assert run_program(program).stdout == "of the config\n"
        # Without the config a template would be without its special strings.
        (snapshot / "tokenizer_config.json").unlink()
        done = run_program(program)
        assert "InputError: --tokenizer mine/chat (no file or folder here)" in done.stderr
        assert "tokenizer_config.json is not in the local cache" in done.stderr
