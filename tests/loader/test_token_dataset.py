"""TokenDataset: samples of datasets of every shape, their documents, and damaged shards."""

import hashlib
import multiprocessing
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.damage import edit_manifest
from support.oracle import ENCODING, EOT, read_texts
from support.sentences import refused

from benchmarks.made_up_dataset import make_dataset, stream
from fineshards.cli.cli import main
from fineshards.errors import OutputError
from fineshards.loader.boundaries import cu_seqlens, position_ids
from fineshards.loader.token_dataset import TokenDataset
from fineshards.storage.open import open_storage

SHARD_TOKENS = 1000
TOKENS = 7321
TEST_SHARDS = 2


def made(folder: Path, tokens: int = TOKENS, **options: object) -> Path:
    options = {"shard_tokens": SHARD_TOKENS, "test_shards": TEST_SHARDS} | options
    make_dataset(open_storage(str(folder)), tokens, **options)  # type: ignore[arg-type]
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("made_up"))


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """A dataset to damage."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def split_stream(split: str) -> np.ndarray:
    border = TEST_SHARDS * SHARD_TOKENS
    return stream(0, border) if split == "test" else stream(border, TOKENS)


@pytest.mark.parametrize("split", ["test", "train"])
@pytest.mark.parametrize("length", [1, 2, 7, 64, 499, 500, 999, 1000, 1001, 1024, 1999])
def test_samples_are_the_stream_at_every_position(whole: Path, split: str, length: int) -> None:
    dataset = TokenDataset(whole, split, sequence_length=length)
    tokens = split_stream(split)
    assert len(dataset) == (len(tokens) - 1) // length
    for i in range(len(dataset)):
        sample = dataset[i]
        assert sample.dtype == np.uint32
        assert np.array_equal(sample, tokens[i * length : i * length + length + 1])
        assert len(sample) == length + 1


@settings(max_examples=40)
@given(st.data())
def test_any_size_of_shard_and_sample_gives_the_stream(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tokens = data.draw(st.integers(2, 400), "tokens")
    shard_tokens = data.draw(st.integers(max(1, tokens // 12), 400), "shard_tokens")
    length = data.draw(st.integers(1, tokens - 1), "length")
    dtype = data.draw(st.sampled_from(["uint16", "uint32"]), "dtype")
    folder = tmp_path_factory.mktemp("any")
    made(folder, tokens, shard_tokens=shard_tokens, test_shards=0, dtype=dtype)
    dataset = TokenDataset(folder, sequence_length=length)
    numbers = data.draw(st.lists(st.integers(0, len(dataset) - 1), max_size=8), "numbers")
    expected = [stream(i * length, i * length + length + 1) for i in numbers]
    gathered = dataset.gather(np.array(numbers, np.int64))
    assert gathered.dtype == np.uint32
    assert gathered.shape == (len(numbers), length + 1)
    assert np.array_equal(gathered, np.array(expected).reshape(gathered.shape))
    bounds = dataset.shard_bounds
    firsts = np.arange(len(dataset)) * length // shard_tokens
    assert bounds.tolist() == [
        int(np.count_nonzero(firsts < shard)) for shard in range(len(bounds))
    ]
    shutil.rmtree(folder)


def test_negative_numbers_count_from_the_end(whole: Path) -> None:
    dataset = TokenDataset(whole, sequence_length=100)
    assert np.array_equal(dataset[-1], dataset[len(dataset) - 1])
    assert np.array_equal(dataset[np.int64(3)], dataset[3])
    assert [sample.tolist() for sample in dataset] == [
        dataset[i].tolist() for i in range(len(dataset))
    ]
    for index in (len(dataset), -len(dataset) - 1):
        with pytest.raises(IndexError, match=rf"no sample {index}: there are {len(dataset)}, "):
            dataset[index]
    for numbers in ([0, len(dataset)], [-1]):
        with pytest.raises(IndexError, match="there is no sample"):
            dataset.gather(np.array(numbers))


def test_token_numbers_beyond_32_bits_are_found(tmp_path: Path) -> None:
    """Shards of more than 2^31 tokens; the files are sparse, except for the tokens read."""
    folder, shard_tokens, length = tmp_path / "large", 2**31 + (1 << 21), 1 << 20
    make_dataset(open_storage(str(folder)), 5, 5)
    tokens = 2 * shard_tokens + 5

    def enlarge(content: dict[str, object]) -> None:
        (shard,) = content["shards"]  # type: ignore[misc]
        content["layout"] |= {"added": [(0, tokens)], "shard_tokens": shard_tokens}  # type: ignore[operator]
        content["reports"][0]["counts"]["tokens"] = tokens  # type: ignore[index]
        content["totals"]["tokens"] = content["splits"]["train"]["tokens"] = tokens  # type: ignore[index]
        content["splits"]["train"]["shards"] = 3  # type: ignore[index]
        content["shards"] = [
            shard
            | {"name": f"train/train_{i:04d}.npy", "index": i, "tokens": n, "bytes": 128 + 4 * n}
            | {"documents": int(i == 0)}
            for i, n in enumerate([shard_tokens, shard_tokens, 5])
        ]
        lines = [f"{s['name']} {s['bytes']} {s['crc32c']}\n".encode() for s in content["shards"]]
        eot = content["settings"]["tokenizer"]["eot"]  # type: ignore[index]
        content["content_fingerprint"] = hashlib.sha256(
            b"eot %d\n" % eot + b"".join(lines)
        ).hexdigest()

    edit_manifest(folder, enlarge)
    from fineshards.shards.npy import header

    for i, n in enumerate([shard_tokens, shard_tokens, 5]):
        with (folder / f"train/train_{i:04d}.npy").open("wb") as file:
            file.write(header(n))
            file.truncate(128 + 4 * n)
    wanted = (2**32 // length) * length
    with (folder / "train/train_0001.npy").open("r+b") as file:
        file.seek(128 + 4 * (wanted - shard_tokens))
        file.write(np.arange(1, 8, dtype="<u4").tobytes())
    dataset = TokenDataset(folder, sequence_length=length)
    assert len(dataset) == (tokens - 1) // length
    sample = dataset[wanted // length]
    assert sample[:8].tolist() == [1, 2, 3, 4, 5, 6, 7, 0]


@settings(max_examples=60)
@given(st.data())
def test_tokens_are_read_wherever_they_begin(whole: Path, data: st.DataObject) -> None:
    split = data.draw(st.sampled_from(["test", "train"]), "split")
    dataset = TokenDataset(whole, split, sequence_length=10)
    start = data.draw(st.integers(0, dataset.tokens), "start")
    stop = data.draw(st.integers(start, dataset.tokens), "stop")
    found = dataset.read_tokens(start, stop)
    assert found.dtype == np.uint32
    assert np.array_equal(found, split_stream(split)[start:stop])
    in_one_shard = start < stop and start // SHARD_TOKENS == (stop - 1) // SHARD_TOKENS
    assert found.flags.writeable != in_one_shard


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 5322), (5322, 5322)])
def test_tokens_beyond_the_split_are_an_index_error(whole: Path, start: int, stop: int) -> None:
    with pytest.raises(IndexError, match="the split has 5,321, numbered from 0"):
        TokenDataset(whole, sequence_length=10).read_tokens(start, stop)
    with pytest.raises(IndexError, match="the split has 5,321, numbered from 0"):
        TokenDataset(whole, sequence_length=10).documents_between(start, stop)


def test_tokens_are_read_in_the_dtype_on_disk(tmp_path: Path) -> None:
    dataset = TokenDataset(made(tmp_path, dtype="uint16", test_shards=0), sequence_length=10)
    for start, stop in [(0, 10), (990, 1010)]:
        found = dataset.read_tokens(start, stop)
        assert found.dtype == np.uint16
        assert np.array_equal(found, stream(start, stop))


# Opening


def test_opening_reads_the_manifest_and_no_shard(copy: Path) -> None:
    shutil.rmtree(copy / "train")
    shutil.rmtree(copy / "test")
    dataset = TokenDataset(copy, sequence_length=100)
    assert len(dataset) == 53


def test_other_files_in_the_folders_are_not_read(copy: Path) -> None:
    """A reader that lists the folder would load placeholders, copies and unrelated files."""
    (copy / "train/train_0000 (copy).npy").write_bytes(b"")
    (copy / "train/train_9999.npy").write_bytes(b"\x93NUMPY")
    (copy / "train/.train_0000.npy.swp").write_bytes(b"x")
    dataset = TokenDataset(copy, sequence_length=100)
    everything = dataset.gather(np.arange(len(dataset)))
    assert np.array_equal(everything[:, :-1].ravel(), split_stream("train")[:5300])


def test_a_read_only_dataset_is_read_and_nothing_is_written(copy: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in copy.rglob("*"))
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    dataset = TokenDataset(copy, sequence_length=100)
    dataset.gather(np.arange(len(dataset)))
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o755)
    assert sorted((path, path.stat().st_mtime_ns) for path in copy.rglob("*")) == before


@pytest.mark.parametrize(
    ("split", "length", "said"),
    [
        ("train", 5321, "has 5,321 tokens, but a sample of sequence_length 5,321 needs 5,322"),
        ("test", 2000, "the test split has 2,000 tokens"),
        ("train", 0, "sequence_length is 0"),
        ("train", -1, "sequence_length is -1"),
        ("train", 1.5, "sequence_length is 1.5"),
        ("dev", 10, "no split 'dev'; choose test or train"),
    ],
)
def test_impossible_arguments_are_refused(whole: Path, split: str, length: int, said: str) -> None:
    message = refused(lambda: TokenDataset(whole, split, sequence_length=length))
    assert said in message


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    made(tmp_path, test_shards=0)
    message = refused(lambda: TokenDataset(tmp_path, "test", sequence_length=10))
    assert "the test split is empty" in message


def test_an_unfinished_dataset_is_refused(copy: Path) -> None:
    (copy / "metadata/manifest.json").unlink()
    message = refused(lambda: TokenDataset(copy, sequence_length=10), OutputError)
    assert "metadata/manifest.json is missing. Put it back" in message
    (copy / "metadata/generations/0001.json").unlink()
    message = refused(lambda: TokenDataset(copy, sequence_length=10), OutputError)
    assert "holds no finished dataset: metadata/manifest.json is missing" in message
    message = refused(lambda: TokenDataset(copy / "none", sequence_length=10), OutputError)
    assert "none" in message


def test_a_manifest_that_contradicts_itself_is_refused(copy: Path) -> None:
    edit_manifest(copy, lambda content: content["shards"].pop())
    message = refused(lambda: TokenDataset(copy, sequence_length=10), OutputError)
    assert "metadata/manifest.json is damaged: its content fingerprint is" in message


# Documents


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, sample: Path) -> Path:
    """A dataset of the sample built by the job, with shards so short that documents cross them."""
    folder = tmp_path_factory.mktemp("built") / "dataset"
    flags = ["--shard_tokens=3000", "--block_bytes=300000", "--test_shards=3"]
    assert main(["build", "--input", str(sample), "--output", str(folder), *flags]) == 0
    return folder


@pytest.mark.long
@pytest.mark.parametrize(("split", "length"), [("train", 700), ("train", 4000), ("test", 512)])
def test_documents_of_a_sample_are_those_of_the_source(
    built: Path, sample: Path, split: str, length: int
) -> None:
    import pyarrow.parquet as pq

    ids = pq.read_table(sample)["id"].to_pylist()
    documents = [[EOT, *ENCODING.encode_ordinary(text)] for text in read_texts(sample)]
    begins = np.cumsum([0, *map(len, documents)])
    dataset = TokenDataset(built, split, sequence_length=length)
    border = 9000 if split == "train" else 0
    touched = set()
    for i in [*range(0, len(dataset), 37), len(dataset) - 1]:
        at = border + i * length
        found = dataset.documents(i)
        tokens = dataset[i]
        # In order and without gaps, from the first token to the last.
        assert [each.begin for each in found] == [0, *(each.end for each in found[:-1])]
        assert found[-1].end == length + 1
        for each in found:
            whole = documents[each.number]
            length_here = each.end - each.begin
            part = whole[each.position : each.position + length_here]
            assert tokens[each.begin : each.end].tolist() == part
            assert begins[each.number] + each.position == at + each.begin
            assert (each.file, each.row, each.id) == (sample.name, each.number, ids[each.number])
            touched.add(each.number)
        starts = sorted({0, *(each.begin for each in found)})
        assert cu_seqlens(tokens, EOT).tolist() == [*starts, length + 1]
        # The positions of a document that began earlier count from the sample's first token.
        assert position_ids(tokens, EOT).tolist() == [
            position for each in found for position in range(each.end - each.begin)
        ]
    assert len(touched) > 5


def test_boundaries_of_batches_restart_in_every_row() -> None:
    eot = 9
    batch = np.array([[9, 1, 2, 9], [1, 2, 3, 4], [4, 9, 9, 5]], np.uint32)
    assert cu_seqlens(batch, eot).tolist() == [0, 3, 4, 8, 9, 10, 12]
    assert cu_seqlens(batch, eot).dtype == np.int32
    assert position_ids(batch, eot).tolist() == [[0, 1, 2, 0], [0, 1, 2, 3], [0, 0, 0, 1]]
    assert cu_seqlens(batch[:0], eot).tolist() == [0]
    assert batch.tolist()[0] == [9, 1, 2, 9]


# Processes and threads


def gather_all(dataset: TokenDataset) -> bytes:
    return bytes(dataset.gather(np.arange(len(dataset))).data)


def _in_child(dataset: TokenDataset, result: object) -> None:
    result.put(gather_all(dataset))  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_dataset_in_use_can_be_read_in_other_processes(whole: Path, method: str) -> None:
    dataset = TokenDataset(whole, sequence_length=100)
    expected = gather_all(dataset)
    context = multiprocessing.get_context(method)
    result = context.Queue()
    children = [context.Process(target=_in_child, args=(dataset, result)) for _ in range(2)]
    for child in children:
        child.start()
    assert [result.get(timeout=60) for _ in children] == [expected, expected]
    for child in children:
        child.join()
    assert gather_all(dataset) == expected


def test_a_pickle_is_small_and_equal(whole: Path) -> None:
    dataset = TokenDataset(whole, sequence_length=100)
    expected = gather_all(dataset)
    content = pickle.dumps(dataset)
    assert len(content) < 2000
    assert gather_all(pickle.loads(content)) == expected
