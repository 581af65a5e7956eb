"""The URL filter gives datatrove's verdicts and reasons, with its lists and the same suffixes."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datatrove.data import Document
from datatrove.pipeline.filters import URLFilter, base_filter, url_filter
from documents import files
from tldextract import TLDExtract

from fineshards.curation.batch import Batch
from fineshards.curation.steps.url import Url

# datatrove calls what tldextract has renamed.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

OWN = {
    "extra_domains": ["wikipedia.org", "docs.example.co.uk"],
    "extra_urls": ["http://a.example/b"],
    "banned_words": ["Viagra", "help-me"],
    "soft_banned_words": ["news", "blog", "html"],
    "banned_subwords": ["gnome", "sub-word"],
}
WORDS = [
    "Viagra",
    "viagra",
    "helpme",
    "news",
    "blog",
    "gnome-x",
    "SUBword",
    "a%20b",
    "é",
    "",
    "x.y",
]
HOSTS = ["en.wikipedia.org", "docs.example.co.uk", "www.docs.example.co.uk", "192.168.0.1", "[::1]"]
HOSTS += [
    "localhost",
    "xn--bcher-kva.example",
    "bücher.de",
    "a.b.kawasaki.jp",
    "user:pw@host.com:80",
]


@pytest.fixture(scope="module")
def urls() -> list[str]:
    """Real URLs, and mixtures of their parts with what lists have."""
    real: set[str] = set()
    for path in files():
        real.update(filter(None, pq.read_table(path, columns=["url"])["url"].to_pylist()))
    sample = sorted(real)[:: max(1, len(real) // 20000)]
    chance = random.Random("urls")
    made = [
        chance.choice(["http://", "https://", "//", "", "HTTP://", "ftp:"])
        + chance.choice([*HOSTS, chance.choice(sample).partition("//")[2].partition("/")[0]])
        + "".join(
            chance.choice(["/", "-", "?", ".", "#", "%2F"]) + chance.choice(WORDS)
            for _ in range(chance.randint(0, 5))
        )
        for _ in range(20000)
    ]
    return sample + made


def ours(step: Url, urls: list[str]) -> list[str | None]:
    column = pa.array(urls, pa.string())
    texts = pa.array(["text"] * len(urls), pa.large_string())
    found = step.apply(Batch(0, np.arange(len(urls)), texts, {"url": column})).reasons
    assert found is not None
    return list(found)


def theirs(filter_: URLFilter, urls: list[str]) -> list[str | None]:
    # Its own would fetch the list of public suffixes.
    filter_.tldextractor = TLDExtract(cache_dir=None, suffix_list_urls=())
    documents = (Document(text="text", id="", metadata={"url": url}) for url in urls)
    results = (base_filter.get_filter_result(filter_.filter(document)) for document in documents)
    return [None if keep else reason for keep, reason in results]


def test_lists_of_ones_own(urls: list[str]) -> None:
    urls = list(filter(None, urls))
    found = ours(Url(use_integrated_lists=False, **OWN), urls)
    assert found == theirs(URLFilter(use_integrated_lists=False, **OWN), urls)
    assert {None, "domain", "subdomain", "url", "hard_blacklisted"} <= {*found, "url"}
    assert min(Counter(found).values()) >= 1
    assert {"soft_blacklisted", "blacklisted_subword"} <= set(found)


def test_datatroves_lists(urls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_filter, "cached_assets_path", lambda **_: str(tmp_path))
    filter_ = URLFilter()
    filter_.download_data()
    # Some of what is listed, too.
    listed = sorted(filter_.block_listed_domains)[::5000]
    urls = [
        *filter(None, urls),
        *(f"http://{domain}/" for domain in listed),
        *(f"https://www.{domain}/page" for domain in listed),
        *sorted(filter_.block_listed_url)[::10],
    ]
    found = ours(Url(), urls)
    assert found == theirs(filter_, urls)
    assert {None, "domain", "subdomain", "url", "hard_blacklisted"} <= set(found)
