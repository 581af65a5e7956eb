"""Repair: lost and damaged files are made again, byte for byte, or nothing is changed."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage as google_storage
from support.build_here import build_here
from support.faulty_proxy import Proxy
from support.growing import append, build, made_up_rows, write_rows
from support.kills import kill
from support.oracle import files_in
from support.tokenizer_files import train

import fineshards
from fineshards import TokenDataset
from fineshards.cli.cli import main
from fineshards.errors import OutputError
from fineshards.shards.job.manifest_file import MANIFEST_NAME

pytestmark = pytest.mark.growing


def write_sources(folder: Path, sample: Path) -> list[Path]:
    """Three files of some hundred documents: parquet, lines with bad rows, parquet."""
    folder.mkdir()
    table = pq.read_table(sample)
    paths = [folder / "0.parquet", folder / "1.jsonl", folder / "2.parquet"]
    pq.write_table(table.slice(0, 300), paths[0], row_group_size=40)
    rows = table.slice(300, 200).to_pylist()
    lines = [json.dumps({"text": row["text"], "id": row["id"]}) for row in rows]
    paths[1].write_text("\n".join([*lines[:50], "{", *lines[50:], '{"text": 3}']) + "\n")
    pq.write_table(table.slice(500, 300), paths[2], row_group_size=300)
    return paths


@pytest.fixture(scope="module", params=["--test_fraction=0.2", "--test_shards=2"])
def built(
    request: pytest.FixtureRequest, sample: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with the sources, in `in/`, and a dataset of them, in `out/`."""
    folder = tmp_path_factory.mktemp("repair")
    write_sources(folder / "in", sample)
    flags = ["--shard_tokens=40000", "--max_bad_rows=5", "--block_bytes=100000", request.param]
    given = [f"--input={folder}/in/*", f"--output={folder}/out", *flags]
    assert main(["build", *given]) == 0
    return folder


@pytest.fixture
def whole(built: Path) -> dict[str, bytes]:
    return files_in(built / "out")


@pytest.fixture
def dataset(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built / "out", tmp_path / "out"))


def lose(path: Path, random: Random) -> None:
    path.unlink()


def cut(path: Path, random: Random) -> None:
    os.truncate(path, random.randrange(path.stat().st_size))


def flip(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_damaged_is_made_again(
    dataset: Path, whole: dict[str, bytes], seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    random = Random(seed)
    names = sorted(set(whole) - {MANIFEST_NAME})
    chosen = sorted(random.sample(names, [1, 2, 3, len(names) // 2, len(names)][seed]))
    for name in chosen:
        random.choice([lose, cut, flip])(dataset / name, random)
    assert main(["repair", str(dataset), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (sorted(done["repaired"]), done["checked"]) == (chosen, len(names))
    assert files_in(dataset) == whole
    assert sorted(path.name for path in dataset.iterdir()) == ["metadata", "test", "train"]
    assert fineshards.verify(dataset).ok
    assert main(["repair", str(dataset)]) == 0
    assert capsys.readouterr().out.startswith(f"nothing to repair: {len(names)} files of ")


def test_only_the_sources_of_what_is_damaged_are_needed(
    built: Path, tmp_path: Path, whole: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(built, tmp_path / "elsewhere"))
    last = max(name for name in whole if name.startswith("train/"))
    moved = [path.rename(tmp_path / path.name) for path in (built / "in").glob("[01].*")]
    try:
        (folder / "out" / last).unlink()
        assert main(["repair", str(folder / "out"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["sources"] == [str(built / "in/2.parquet")]
        assert files_in(folder / "out") == whole
        # The first shards are of the files that are not there.
        (folder / "out/test/test_0000.npy").unlink()
        before = files_in(folder / "out")
        assert main(["repair", str(folder / "out")]) == 1
        errors = capsys.readouterr().err
        assert "0.parquet was deleted since the dataset was built" in errors
        assert files_in(folder / "out") == before
    finally:
        for path in moved:
            path.rename(built / "in" / path.name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes() + b"\n"), "has changed since the dataset"),
        (
            lambda path: path.write_text(path.read_text().replace("the", "a b", 5)),
            "has changed since the dataset was built: it has other",
        ),
        (
            lambda path: path.write_text(path.read_text().replace(" 10", " 11")),
            "made again is not what the manifest says|it has other numbers",
        ),
    ],
    ids=["size", "counts", "bytes"],
)
def test_a_source_that_has_changed_is_refused(
    change: Callable[[Path], None],
    words: str,
    built: Path,
    dataset: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = built / "in/1.jsonl"
    shutil.copy2(source, tmp_path)
    try:
        change(source)
        for shard in (dataset / "train").iterdir():
            shard.unlink()
        before = files_in(dataset)
        assert main(["repair", str(dataset)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("fineshards: ")
        assert re.search(words, line)
        assert "othing was repaired" in line
        assert files_in(dataset) == before
    finally:
        shutil.copy(tmp_path / source.name, source)


def test_a_source_that_was_copied_back_is_the_same(
    built: Path, dataset: Path, whole: dict[str, bytes]
) -> None:
    os.utime(built / "in/0.parquet", (1, 1))
    (dataset / "test/test_0000.npy").unlink()
    assert main(["repair", str(dataset)]) == 0
    assert files_in(dataset) == whole


def test_a_damaged_manifest_is_put_back_from_its_copy(
    dataset: Path, whole: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, copy = dataset / MANIFEST_NAME, dataset / "metadata/generations/0001.json"
    damaged = manifest.read_text().replace("origin", "origim", 1)
    for content in (damaged, manifest.read_text().replace("\n", "\n ", 1)):
        manifest.write_text(content)
        assert main(["repair", str(dataset)]) == 0
        assert f"repaired {MANIFEST_NAME}" in capsys.readouterr().out
        assert files_in(dataset) == whole
    for path in (manifest, copy):
        path.write_text(damaged)
    assert main(["repair", str(dataset)]) == 1
    assert "manifest.json is damaged. If metadata/generations/ has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("cut", "is damaged. If metadata/generations/ has the same manifest, put it back"),
        ("version", "is damaged. If metadata/generations/ has the same manifest, put it back"),
        ("lost", "metadata/manifest.json is missing. Put it back from its copy"),
        ("older", "is the manifest of generation 1, but metadata/generations/0002.json is there"),
        ("swapped", "is the manifest of generation 1, but metadata/generations/0002.json is there"),
    ],
)
def test_the_manifest_of_a_dataset_that_has_grown_is_put_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str, said: str
) -> None:
    files = [write_rows(tmp_path / f"in/{n}.jsonl", made_up_rows(n, 12)) for n in range(3)]
    folder = tmp_path / "out"
    build(folder, files[0], "--shard_tokens=700", "--test_fraction=0.3")
    append(folder, files[1])
    whole = files_in(folder)
    manifest, first = folder / MANIFEST_NAME, folder / "metadata/generations/0001.json"
    latest, older = manifest.read_bytes(), first.read_bytes()
    changed = {"cut": latest[:-50], "version": latest.replace(b"manifest 4", b"manifest 2", 1)}
    manifest.write_bytes(changed.get(damage, older))
    if damage == "swapped":
        first.write_bytes(latest)
    if damage == "lost":
        manifest.unlink()
    for command in (["verify", folder], ["append", folder, "--input", files[2]], ["stats", folder]):
        assert main([*map(str, command)]) != 0
        assert said in capsys.readouterr().err, command
    with pytest.raises(OutputError, match=re.escape(said)):
        TokenDataset(folder, sequence_length=8)
    assert main(["repair", str(folder)]) == 0
    assert f"repaired {MANIFEST_NAME}" in capsys.readouterr().out
    assert files_in(folder) == whole
    # Without both, an earlier one is no substitute: a later append would delete what came after.
    if damage in changed:
        manifest.write_bytes(changed[damage])
        (folder / "metadata/generations/0002.json").unlink()
        before = files_in(folder)
        assert main(["repair", str(folder)]) == 1
        assert "0002.json are both damaged" in capsys.readouterr().err
        assert files_in(folder) == before


def test_a_tokenizer_file_comes_from_where_it_is_now(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = pq.read_table(sample)["text"].to_pylist()[:200]
    train("gpt2", texts).save(str(tmp_path / "tokenizer.json"))
    train("gpt2", texts, size=1500).save(str(tmp_path / "other.json"))
    output = tmp_path / "out"
    build_here(
        input=sample, output=output, tokenizer=tmp_path / "tokenizer.json", shard_tokens=10**6
    )
    whole = files_in(output)
    (tmp_path / "tokenizer.json").rename(tmp_path / "moved.json")
    (output / "metadata/tokenizer.json").unlink()
    assert main(["repair", str(output)]) != 0
    assert main(["repair", str(output), f"--tokenizer={tmp_path}/other.json"]) == 1
    assert "is another tokenizer: sha256" in capsys.readouterr().err
    assert main(["repair", str(output), f"--tokenizer={tmp_path}/moved.json"]) == 0
    assert files_in(output) == whole


def test_what_repair_leaves_wrong_is_named_and_is_a_failure(
    dataset: Path, whole: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train/train_0000.npy.bak", "metadata/notes.txt", "other"):
        (dataset / name).write_text("x")
        lost = dataset / "train/train_0000.npy"
        lost.unlink()
        assert main(["repair", str(dataset)]) == 1
        said = capsys.readouterr().out
        assert "repaired train/train_0000.npy\n" in said
        assert f"{name} does not belong to the dataset" in said
        assert main(["repair", str(dataset)]) == 1
        (dataset / name).unlink()
        assert main(["repair", str(dataset)]) == 0
        assert files_in(dataset) == whole
    fineshards.publish(dataset)
    assert main(["repair", str(dataset)]) == 0
    with (dataset / "SHA256SUMS").open("a") as sums:
        sums.write("x\n")
    capsys.readouterr()
    assert main(["repair", str(dataset), "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["left"]
    assert "SHA256SUMS" in problem
    fineshards.publish(dataset)
    assert main(["repair", str(dataset)]) == 0


@pytest.mark.kills
@pytest.mark.parametrize("file", ["train/train_0001.npy", "metadata/documents/train_0001.parquet"])
def test_what_a_killed_repair_has_left_goes_if_nothing_else_is_to_be_done(
    dataset: Path, whole: dict[str, bytes], file: str
) -> None:
    (dataset / file).unlink()
    kill(f"replace:out/{file}", "repair", dataset)
    (dataset / file).write_bytes(whole[file])
    assert main(["repair", str(dataset)]) == 0
    assert files_in(dataset) == whole


@pytest.mark.cloud
def test_a_dataset_on_gs_is_repaired(cloud: Proxy, sample: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    pq.write_table(pq.read_table(sample).slice(0, 60), source, row_group_size=7)
    flags = ["--shard_tokens=4000", "--test_fraction=0.3", "--block_bytes=1"]
    assert main(["build", f"--input={source}", "--output=gs://data/out", *flags]) == 0
    whole = {name: cloud.content("data", name) for name in cloud.names("data")}
    client = google_storage.Client(project="p", credentials=AnonymousCredentials())
    bucket = client.bucket("data")
    names = [name for name in whole if name.endswith((".npy", ".parquet", "job.json"))]
    for number, name in enumerate(names[::2]):
        bucket.delete_blob(name)
        if number % 2:
            bucket.blob(name).upload_from_string(whole[name][:-1] + b"?")
    assert main(["repair", "gs://data/out"]) == 0
    assert {name: cloud.content("data", name) for name in cloud.names("data")} == whole
