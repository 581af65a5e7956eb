"""The URL filter by lists of one's own, and the sets of strings that hold lists."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineshards.curation.batch import Batch
from fineshards.curation.reference_files import pin
from fineshards.curation.steps.url import StringSet, Url, lines_of
from fineshards.errors import InputError, MissingLibraryError


def with_urls(urls: list[Any], as_json: bool = False) -> Batch:
    texts = pa.array(["text"] * len(urls), pa.large_string())
    return Batch(1, np.arange(len(urls)), texts, {"url": pa.array(urls)}, as_json)


def reasons(urls: list[Any], as_json: bool = False, **parameters: Any) -> list[str | None]:
    step = Url(use_integrated_lists=False, **parameters)
    found = step.apply(with_urls(urls, as_json)).reasons
    assert found is not None
    return list(found)


def test_the_first_reason_counts() -> None:
    found = reasons(
        [
            "https://www.bad.co.uk/news-blog",
            "http://a.host.org/",
            "http://host.org/",
            "http://fine.org/listed",
            "http://fine.org/x/SPAM",
            "http://fine.org/x/spam",
            "http://fine.org/news/blog",
            "http://fine.org/news/news",
            "http://fi-ne.org/ga-mb-ling",
            "http://192.168.0.1/",
            "",
            None,
        ],
        extra_domains=["bad.co.uk", "a.host.org", "co.uk"],
        extra_urls=["http://fine.org/listed"],
        banned_words=["spam"],
        soft_banned_words=["news", "blog"],
        banned_subwords=["gamb-ling"],
    )
    assert found == [
        *("domain", "subdomain", None, "url", None, "hard_blacklisted", "soft_blacklisted", None),
        *("blacklisted_subword", None, None, None),
    ]


def test_lists_are_read_from_files(tmp_path: Path) -> None:
    lists = {"domains": "# bad ones\nbad.org\r\n  worse.org \n", "words": "Sp-am\n"}
    for name, content in lists.items():
        (tmp_path / name).write_bytes(content.encode())
    step = Url(
        use_integrated_lists=False,
        domain_files=[str(tmp_path / "domains")],  # type: ignore[arg-type]
        banned_word_files=[str(tmp_path / "words")],  # type: ignore[arg-type]
    )
    pins = step.pins()
    assert pins[str(tmp_path / "domains")] == pin(str(tmp_path / "domains")).sha256
    assert {"tldextract", "public suffixes"} < pins.keys()
    urls = ["http://worse.org", "http://bad.org", "http://x.org/spam", "http://ok.org"]
    assert step.apply(with_urls(urls)).reasons == ["domain", "domain", "hard_blacklisted", None]
    (tmp_path / "domains").write_text("ok.org\n")
    step.pins()
    assert step.apply(with_urls(urls)).reasons == [None, None, "hard_blacklisted", "domain"]
    (tmp_path / "domains").unlink()
    with pytest.raises(InputError, match="domains: there is no such file"):
        step.pins()


def test_urls_that_are_not_text_are_named() -> None:
    assert reasons(['"http://a.org"', "null", None], True, extra_domains=["a.org"]) == [
        *("domain", None, None)
    ]
    with pytest.raises(InputError, match="file 1 of the input, row 1: its 'url' is int 5"):
        reasons(["null", "5"], True)


@pytest.mark.skipif(find_spec("datatrove") is not None, reason="datatrove is installed")
def test_datatroves_lists_are_found_where_it_is_installed() -> None:
    with pytest.raises(MissingLibraryError, match=r"fineshards\[datatrove\].*use_integrated_lists"):
        Url().pins()


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_no_url_is_too_odd(url: str) -> None:
    assert reasons([url, f"http://{url}"], extra_domains=["a.org"]) is not None


@given(
    st.lists(st.text(st.characters(codec="utf-8"), max_size=3)),
    st.lists(st.text(st.characters(codec="utf-8"), max_size=3)),
)
def test_a_set_of_strings_has_what_a_set_has(strings: list[str], asked: list[str]) -> None:
    found = StringSet(pa.array(strings, pa.large_string()))
    asked += strings[::2]
    assert found.contains(asked).tolist() == [one in set(strings) for one in asked]


def test_a_hash_alone_does_not_decide() -> None:
    found = StringSet(pa.array(["a", "b"], pa.large_string()))
    found._hashes[:] = found._hashes[0]
    asked = ["a", "b"] if found.contains(["a"])[0] else ["b", "a"]
    assert found.contains([*asked, "c"]).tolist()[2] is False


def test_lines_of_a_list() -> None:
    content = "#no\n a \r\n\nb\u00a0\n#no".encode()
    assert lines_of("f", content).to_pylist() == ["a", "", "b"]
    assert lines_of("f", b"").to_pylist() == []
    with pytest.raises(InputError, match="f is not UTF-8"):
        lines_of("f", b"\xff\n")
