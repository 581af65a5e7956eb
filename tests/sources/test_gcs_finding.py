"""Input on gs://: which objects patterns and folders find, and what to say if they cannot."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from support.faulty_proxy import Proxy
from support.gcs_input import Stored
from support.patterns import NAMES, matches_as_for_local_files, patterns, write_names
from support.source_files import find, read_file

from fineshards.cli.cli import main
from fineshards.errors import InputError, UsageError
from fineshards.shards.job.records import SourceFile
from fineshards.sources.files import find_files

LINES = b'{"text": "a"}\n'


ALWAYS = range(1, 1 << 30)


@pytest.fixture(scope="module")
def same(gcs_proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The same file names in a local folder and in a bucket."""
    folder, stored = write_names(tmp_path_factory.mktemp("same")), Stored(gcs_proxy)
    for name in NAMES:
        stored.put(f"in/{name}", b"")
    stored.put("in/a/", b"")  # a folder as created by the Cloud console
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STORAGE_EMULATOR_HOST", gcs_proxy.address)
        yield folder, stored.url


@settings(max_examples=300)
@given(patterns)
def test_a_pattern_matches_as_for_local_files(same: tuple[Path, str], pattern: str) -> None:
    folder, bucket = same
    matches_as_for_local_files(bucket, folder, pattern)


def test_only_objects_that_may_match_are_listed(stored: Stored) -> None:
    for name in ("in/a.jsonl", "in/deep/b.jsonl", "in/c.parquet", "other/d.jsonl"):
        stored.put(name, b"")
    assert find(f"{stored.url}/in/*.jsonl") == [f"{stored.url}/in/a.jsonl"]
    (listing,) = stored.requests()
    assert "prefix=in/&" in listing.line
    assert "delimiter=/&" in listing.line


def test_one_listing_describes_all_files(stored: Stored) -> None:
    urls = [stored.put(f"in/{number}.jsonl.gz", b"x" * number) for number in range(1, 4)]
    files = find_files([f"{stored.url}/in/*"])
    assert len(stored.requests()) == 1
    assert files == [
        SourceFile(
            number,
            url,
            number + 1,
            f"generation:{stored.generation(f'in/{number + 1}.jsonl.gz')}",
            "jsonl",
            "gzip",
        )
        for number, url in enumerate(urls)
    ]


def test_local_and_gs_patterns_keep_their_order(stored: Stored, sample: Path) -> None:
    first, second = stored.put("b.parquet", sample), stored.put("a.parquet", sample)
    assert find(first, str(sample), f"{stored.url}/a*") == [first, str(sample), second]


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        (["{}/in/*.parquet"], r"--input gs://data-\d+/in/\*\.parquet: no file matches"),
        (["{}/no"], "no file matches"),
        (["{}/in"], r"cannot read gs://data-\d+/in/b\.xml; expected \.arrow"),
        (["{}"], r"cannot read gs://data-\d+/in/b\.xml; expected \.arrow"),
        (
            ["{}/in/*.jsonl", "{}/in/a*"],
            r"in/a\.jsonl is matched twice, by --input .*/in/\*\.jsonl",
        ),
        (["{}/in/*"], r"/in/\*: cannot read gs://.*/in/b\.xml; expected \.arrow"),
        (["{}/in/b*"], r"cannot read .*/in/b\.xml; expected \.arrow"),
        (["gs:///in/*"], "has no bucket name"),
        (["gs://data-*/in/a.jsonl"], "without wildcards in the first part"),
    ],
)
def test_unusable_patterns_are_explained(stored: Stored, patterns: list[str], words: str) -> None:
    for name in ("in/a.jsonl", "in/b.xml"):
        stored.put(name, b"{}")
    with pytest.raises(UsageError, match=words):
        find(*(pattern.format(stored.url) for pattern in patterns))


def test_a_missing_bucket_is_named(stored: Stored) -> None:
    with pytest.raises(InputError, match=r"^gs://no-such/a cannot be listed: there is no bucket"):
        find("gs://no-such/a*")


def test_missing_permission_is_one_sentence(stored: Stored) -> None:
    url = stored.put("a.jsonl", LINES)
    (file,) = find_files([url])
    stored.proxy.fail("GET", 403, ALWAYS)
    with pytest.raises(InputError, match=rf"^{url} cannot be listed: no permission \(403\)"):
        find(url)
    with pytest.raises(InputError, match=rf"^{url} cannot be read: no permission \(403\)"):
        read_file(file)
    # Metadata may be read, content may not.
    stored.forget()
    stored.proxy.fail("alt=media", 403, ALWAYS)
    with pytest.raises(InputError, match=rf"^{url} cannot be read: no permission \(403\)"):
        read_file(file)


def test_a_gs_url_as_dataset_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "--dataset=gs://bucket/folder", "--output=out"]) == 2
    assert "use --input, such as --input 'gs://" in capsys.readouterr().err


def test_a_folder_means_all_data_objects_below_it(stored: Stored) -> None:
    names = ["in/a.jsonl", "in/b/c.parquet", "in/b/d.json.gz"]
    beside = ["in/README.md", "in/_SUCCESS", "in/_delta_log/0.json", "in/.x/a.jsonl", "in/b/"]
    for name in [*names, *beside, "in2/a.jsonl"]:
        stored.put(name, b"")
    urls = [f"{stored.url}/{name}" for name in names]
    assert find(f"{stored.url}/in/") == find(f"{stored.url}/in") == urls
    assert find(stored.url) == [*urls, f"{stored.url}/in2/a.jsonl"]
    assert find(f"{stored.url}/in/*") == find(f"{stored.url}/in/[!R]*") == urls
