"""Input files: which files are found, in which order, and that none is read twice."""

import os
from pathlib import Path

import datasets
import pytest
from support.source_files import blocks_of

from fineshards.errors import InputError, UsageError
from fineshards.sources.files import check_unchanged, describe_files, expand_lists, find_files
from fineshards.sources.formats.format import format_of


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Some files in a folder of the working directory."""
    for name in (
        "b.parquet",
        "a.parquet",
        "A.parquet",
        "d/c.parquet",
        "d/e/f.parquet",
        "d/g.jsonl",
    ):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "in/folder.parquet").mkdir()
    (tmp_path / "in/10.parquet").write_text("")
    (tmp_path / "in/9.parquet").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "in"


def found(tree: Path, *patterns: str) -> list[str]:
    return [os.path.relpath(file.path, tree) for file in find_files(patterns)]


def test_matches_are_sorted_by_name_without_folders(tree: Path) -> None:
    names = ["10.parquet", "9.parquet", "A.parquet", "a.parquet", "b.parquet"]
    assert found(tree, "in/*.parquet") == names
    assert found(tree, f"{tree}/*.parquet") == names
    assert all(os.path.isabs(file.path) for file in find_files(["in/*.parquet"]))


def test_patterns_keep_their_order(tree: Path) -> None:
    assert found(tree, "in/d/*.jsonl", "in/b.parquet", "in/[aA].parquet") == [
        "d/g.jsonl",
        "b.parquet",
        "A.parquet",
        "a.parquet",
    ]


def test_a_double_star_matches_at_any_depth(tree: Path) -> None:
    assert found(tree, "in/d/**/*.parquet") == ["d/c.parquet", "d/e/f.parquet"]
    assert found(tree, "in/**/f.parquet") == ["d/e/f.parquet"]


@pytest.mark.parametrize("pattern", ["in/*.jsonl", "in/nothing.parquet", "in/nothing/"])
def test_a_pattern_without_a_match_is_an_error(pattern: str) -> None:
    with pytest.raises(UsageError, match=rf"--input {pattern.replace('*', '.')}: no file matches"):
        find_files(["in/a.parquet", pattern])


def test_a_name_with_wildcards_in_it_is_found(tree: Path) -> None:
    (tree / "odd[1].parquet").write_text("")
    assert found(tree, "in/odd[[]1].parquet") == ["odd[1].parquet"]
    assert found(tree, "in/odd[1].parquet") == ["odd[1].parquet"]


@pytest.mark.parametrize(
    "again",
    [
        "in/a.parquet",
        "./in/../in/a.parquet",
        "in//a.parquet",
        "in/link.parquet",
        "in/linked_folder/a.parquet",
        "in/**/a.parquet",
    ],
)
def test_a_file_matched_twice_under_any_name_is_an_error(tree: Path, again: str) -> None:
    (tree / "link.parquet").symlink_to(tree / "a.parquet")
    (tree / "linked_folder").symlink_to(tree)
    with pytest.raises(UsageError, match=r"is matched twice, by --input in/a\.parquet and --input"):
        find_files(["in/a.parquet", again])


@pytest.mark.parametrize("scheme", ["file", "local"])
@pytest.mark.parametrize("pattern", ["in/a.parquet", "in/*.parquet", "in"])
def test_a_file_matched_as_a_path_and_as_a_url_is_an_error(
    tree: Path, scheme: str, pattern: str
) -> None:
    url = f"{scheme}://{tree.parent / pattern}"
    for given in (["in/a.parquet", url], [url, "in/a.parquet"]):
        with pytest.raises(UsageError, match=r"a\.parquet is matched twice, by --input "):
            find_files(given)


def test_a_link_keeps_its_own_name(tree: Path) -> None:
    # The hub's cache stores files under names without extensions.
    (tree / "blob").write_text("content")
    (tree / "x.parquet").symlink_to(tree / "blob")
    (file,) = find_files(["in/x.parquet"])
    assert (os.path.basename(file.path), file.format, file.size) == ("x.parquet", "parquet", 7)


@pytest.mark.parametrize("pattern", ["in/broken.parquet", "in/*.parquet", "in"])
def test_a_broken_link_is_refused(tree: Path, pattern: str) -> None:
    (tree / "broken.parquet").symlink_to(tree / "nowhere")
    with pytest.raises(InputError, match=r"broken\.parquet cannot be read.*a link to .*/nowhere"):
        find_files([pattern])


def test_what_is_not_a_file_is_refused(tree: Path) -> None:
    os.mkfifo(tree / "pipe.jsonl")
    with pytest.raises(InputError, match=r"pipe\.jsonl is not a file"):
        find_files(["in/*.jsonl"])


def test_a_folder_means_all_data_files_below_it(tree: Path) -> None:
    for name in ("_SUCCESS", ".hidden.parquet", "README.md", "LICENSE", "dataset_infos.json"):
        (tree / name).write_text("")
    for name in ("_delta_log/0.json", ".git/a.json", "d/notes.md"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("")
    names = ["10.parquet", "9.parquet", "A.parquet", "a.parquet", "b.parquet"]
    names += ["d/c.parquet", "d/e/f.parquet", "d/g.jsonl"]
    assert found(tree, "in") == found(tree, "in/") == found(tree, str(tree)) == names
    # Also through links, even if they lead round in a circle.
    (tree / "d/up").symlink_to(tree)
    (tree.parent / "link").symlink_to(tree)
    assert found(tree, "in") == names
    assert len(find_files(["link"])) == len(names)


def test_texts_of_a_folder_are_data_except_for_those_about_it(tree: Path) -> None:
    for name in ("README.txt", "d/LICENSE.txt", "d/Notice.TXT", "d/changelog.txt.gz", "d/t.txt"):
        (tree / name).write_text("")
    assert [name for name in found(tree, "in") if ".txt" in name] == ["d/t.txt"]
    # Unless they are named.
    assert found(tree, "in/README.txt") == ["README.txt"]


def test_a_folder_with_other_files_is_refused(tree: Path) -> None:
    for name in ("w.pdf", "x.md5", "y.gz", "z.parquet.gz"):
        (tree / "d" / name).write_text("")
    words = r"cannot read .*/w\.pdf, .*/x\.md5, .*/y\.gz and 1 more; expected \.arrow"
    with pytest.raises(UsageError, match=words):
        find_files(["in"])


def test_a_folder_without_data_is_refused(tree: Path) -> None:
    (tree / "folder.parquet/README").write_text("")
    with pytest.raises(UsageError, match=r"no file matches.* begin with \. or _.* are left out"):
        find_files(["in/folder.parquet"])


def test_a_folder_that_matches_means_all_data_files_below_it(tree: Path) -> None:
    for name in ("_SUCCESS", "_old/x.parquet", "d/.part.crc"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text("")
    assert found(tree, "in/*") == found(tree, "in")
    assert found(tree, "in/[d_]*") == ["d/c.parquet", "d/e/f.parquet", "d/g.jsonl"]
    # Unless a pattern gives the beginning of a name.
    assert found(tree, "in/_ol*") == found(tree, "in/_old") == ["_old/x.parquet"]


def test_a_pattern_with_an_ending_leaves_nothing_out_that_it_matches(tree: Path) -> None:
    for name in ("_b.jsonl", "config.json"):
        (tree / name).write_text("{}")
    assert "_b.jsonl" in found(tree, "in/*.jsonl")
    assert found(tree, "in/*.json") == ["config.json"]
    assert "_b.jsonl" not in found(tree, "in/*")


def test_a_double_star_matches_all_files_but_those_with_hidden_names(tree: Path) -> None:
    for name in ("_old/x.parquet", "d/_tmp/y.parquet"):
        (tree / name).parent.mkdir()
        (tree / name).write_text("")
    assert found(tree, "in/**") == found(tree, "in/**/") == found(tree, "in")
    assert not any("_" in name for name in found(tree, "in/**/*.parquet", "in/*/*.jsonl"))
    assert found(tree, "in/d/_t*/*") == found(tree, "in/**/_tmp/*") == ["d/_tmp/y.parquet"]


def test_a_folder_with_two_names_in_a_pattern_is_read_once(tree: Path) -> None:
    for name in ("d0", "d1"):
        (tree / name).symlink_to(tree / "d")
    once = ["d/c.parquet", "d/e/f.parquet", "d/g.jsonl"]
    for pattern in ("in/d*", "in/d*/", "in/d*/**"):
        assert found(tree, pattern) == once
    # Neither if one of the names is hidden.
    (tree / "_d").symlink_to(tree / "d")
    assert found(tree, "in/[_d]*/*.jsonl") == ["d/g.jsonl"]


def test_a_pattern_that_ends_with_a_slash_means_folders(tree: Path) -> None:
    assert found(tree, "in/*/") == ["d/c.parquet", "d/e/f.parquet", "d/g.jsonl"]


def test_a_list_of_files_stands_for_them(tree: Path) -> None:
    (tree / "list.txt").write_text("\ufeffin/d/*.jsonl\n\n  in/b.parquet\r\n")
    assert expand_lists(["a", "@in/list.txt"]) == ["a", "in/d/*.jsonl", "in/b.parquet"]
    with pytest.raises(InputError, match=r"--input @in/no: the list cannot be read"):
        expand_lists(["@in/no"])
    (tree / "list.txt").write_text("\ufeff\n \n")
    with pytest.raises(InputError, match=r"--test_input @in/list\.txt: the list is empty\. Write"):
        expand_lists(["in/b.parquet", "@in/list.txt"], "--test_input")


def test_a_saved_dataset_is_what_its_state_lists(tree: Path) -> None:
    rows = datasets.Dataset.from_dict({"text": ["a", "b", "c"]})
    for shards in (3, 2):  # the files of the first save stay there
        rows.save_to_disk(str(tree / "saved"), num_shards=shards)
    datasets.load_from_disk(str(tree / "saved")).map(lambda row: {"text": row["text"] * 2})
    assert len([*(tree / "saved").glob("cache-*.arrow")]) == 1
    names = [f"saved/data-0000{number}-of-00002.arrow" for number in range(2)]
    assert found(tree, "in/saved") == found(tree, "in/saved/*") == found(tree, "in/s*") == names
    assert found(tree, "in/saved/*-of-00002.arrow") == names
    assert len(found(tree, "in/saved/cache-*")) == 1
    for pattern in ("saved/data*.arrow", "**/*.arrow", "saved/data-00002-of-00003.arrow"):
        with pytest.raises(UsageError, match=r"-of-00003\.arrow.*: not listed by state\.json"):
            find_files([f"in/{pattern}"])
    for name in ("more.jsonl", "mine.parquet", "old.arrow"):
        (tree / "saved" / name).write_text("")
        for pattern in ("in", "in/saved", "in/saved/*"):
            with pytest.raises(UsageError, match=rf"{name}: not listed by state\.json"):
                find_files([pattern])
        assert name == "old.arrow" or found(tree, f"in/saved/{name}") == [f"saved/{name}"]
        (tree / "saved" / name).unlink()
    (tree / names[1]).unlink()
    for pattern in ("in", "in/saved", "in/s*", "in/saved/*", "in/saved/data*-of-00002.arrow"):
        with pytest.raises(InputError, match=rf"{names[1]} is not there, although .*/state\.json"):
            find_files([pattern])
    assert found(tree, f"in/{names[0]}") == names[:1]
    # Another file of that name is data.
    (tree / "d/state.json").write_text('{"text": "a"}\n')
    assert "d/state.json" in found(tree, "in/d")


def test_a_split_that_a_saved_dataset_lacks_is_an_error(tree: Path) -> None:
    rows = datasets.Dataset.from_dict({"text": ["a"]})
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(str(tree / "saved"))
    names = [f"saved/{split}/data-00000-of-00001.arrow" for split in ("test", "train")]
    assert found(tree, "in/saved") == found(tree, "in/saved/*/*.arrow") == names
    (tree / "saved/train").rename(tree / "elsewhere")
    for pattern in ("in/saved", "in/s*", "in/saved/*", "in/saved/*/*.arrow", "in/**/*.arrow"):
        with pytest.raises(InputError, match=r"train/state\.json is not there, although .*_dict\."):
            find_files([pattern])
    assert found(tree, "in/saved/test") == names[:1]
    # Another file of that name is none of a saved dataset.
    (tree / "saved/dataset_dict.json").write_text("[]")
    assert found(tree, "in/saved") == names[:1]


def test_what_map_has_cached_beside_the_data_is_refused(tree: Path) -> None:
    for name in ("json-train.arrow", "cache-0f3a.arrow"):
        (tree / "d" / name).write_text("")
    for pattern in ("in", "in/d/*", "in/d/*.arrow"):
        with pytest.raises(UsageError, match=r"cache-0f3a\.arrow: what map or filter of .* twice"):
            find_files([pattern])
    assert found(tree, "in/d/json*.arrow", "in/d/cache-0*") == [
        "d/json-train.arrow",
        "d/cache-0f3a.arrow",
    ]


def test_records_beside_data_are_left_out(tree: Path) -> None:
    names = ("_SUCCESS", "a.parquet.crc", "dataset_dict.json", "stats.json", "x_builder.lock")
    for name in names:
        (tree / "d" / name).write_text("")
    assert (
        found(tree, "in/d")
        == found(tree, "in/d/*")
        == ["d/c.parquet", "d/e/f.parquet", "d/g.jsonl"]
    )


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv", "txt", "arrow", "jsonl.gz", "warc"])
def test_a_pointer_of_git_lfs_is_named_as_such(tree: Path, ending: str) -> None:
    path = tree / f"x.{ending}"
    path.write_text(LFS)
    with pytest.raises(InputError, match=rf"x\.{ending} is a Git LFS pointer.*git lfs pull"):
        blocks_of(path)


def test_a_name_that_is_not_utf8_is_refused(tree: Path) -> None:
    path = os.fsencode(tree / "d") + b"/\xff.jsonl"
    with open(path, "w"):
        pass
    for pattern in ("in", "in/d/*.jsonl"):
        with pytest.raises(InputError, match=r"d/\\xff\.jsonl: the name is not valid UTF-8"):
            find_files([pattern])


def test_other_urls_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--input gopher://b/\*\.parquet: gopher:// cannot be"):
        find_files(["gopher://b/*.parquet"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.parquet", ("parquet", "none")),
        ("a.b.parquet", ("parquet", "none")),
        ("a.jsonl", ("jsonl", "none")),
        ("a.ndjson.gz", ("jsonl", "gzip")),
        ("a.json.gz", ("jsonl", "gzip")),
        ("a.jsonl.zst", ("jsonl", "zstd")),
        ("a.jsonl.xz", ("jsonl", "xz")),
        ("a.json.bz2", ("jsonl", "bzip2")),
        ("a.csv.gz", ("csv", "gzip")),
        ("a.tsv", ("tsv", "none")),
        ("a.arrow", ("arrow", "none")),
        ("a.feather", ("arrow", "none")),
        ("a.warc.gz", ("warc", "gzip")),
        ("a.wet", ("wet", "none")),
        ("CC-MAIN-1.warc.wet.gz", ("wet", "gzip")),
        ("a.txt.zst", ("text", "zstd")),
        ("A.JSONL.GZ", ("jsonl", "gzip")),
        ("a.jsonlines.zstd", ("jsonl", "zstd")),
        ("a.Parq", ("parquet", "none")),
        ("/with.parquet/a.jsonl", ("jsonl", "none")),
    ],
)
def test_the_name_determines_the_format(name: str, kind: tuple[str, str]) -> None:
    assert format_of(name) == kind


@pytest.mark.parametrize(
    "name",
    [*("a", "a.pdf", "a.gz", "a.parquet.gz", "a.arrow.zst", "a.warc.xz", "a.jsonl.gz.zst"), "gz"],
)
def test_a_name_of_unknown_format_is_an_error(name: str) -> None:
    with pytest.raises(UsageError, match=rf"cannot read a file named '{name}'; expected \.arrow"):
        format_of(f"/in/{name}")


def test_files_are_described_in_the_order_given(tree: Path) -> None:
    paths = [str(tree / "b.parquet"), str(tree / "d/g.jsonl"), str(tree / "a.parquet")]
    files = describe_files(paths)
    assert [file.path for file in files] == paths
    assert [file.index for file in files] == [0, 1, 2]
    assert [file.size for file in files] == [len("b.parquet"), len("d/g.jsonl"), len("a.parquet")]
    assert files[0].identity == f"mtime:{os.stat(paths[0]).st_mtime_ns}"


def test_a_changed_size_or_time_is_detected(tree: Path) -> None:
    path = tree / "a.parquet"
    (file,) = describe_files([str(path)])
    check_unchanged(file)
    state = path.stat()
    with path.open("a") as opened:
        opened.write("x")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(InputError, match=rf"it had {file.size} bytes.*now {file.size + 1} bytes"):
        check_unchanged(file)
    path.write_text("a.parquet")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    with pytest.raises(InputError, match=r"a\.parquet changed since the job was launched"):
        check_unchanged(file)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    check_unchanged(file)
    path.unlink()
    with pytest.raises(InputError, match=r"a\.parquet was deleted since the job was launched"):
        check_unchanged(file)
