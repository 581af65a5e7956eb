"""What is refused: an arrangement, a command, and the one sentence with which it ends."""

import gzip
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.bad_rows import JSONL, TEXTS, invalid, with_line
from support.damage import flip_bit
from support.growing import build, made_up_rows, write_parts
from support.oracle import files_in

import fineshards
from fineshards.cli.cli import main

Arrange = Callable[[Path], object]
# The arrangement, the command, its exit code, and what its last line holds.
Case = tuple[Arrange | None, str, int, str]


def write(name: str, content: bytes | str = b"") -> Arrange:
    """Writes a file."""

    def arrange(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return arrange


def parquet(name: str, columns: dict[str, Any], **options: Any) -> Arrange:
    """Writes a Parquet file."""
    given = {"row_group_size": 100} | options
    return lambda folder: pq.write_table(pa.table(columns), folder / name, **given)


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def corrupt_page(folder: Path) -> None:
    """Overwrites bytes in the middle of the text of the second row group."""
    path = folder / "page.parquet"
    options: dict[str, Any] = {"compression": "snappy", "use_dictionary": False}
    pq.write_table(
        pa.table({"text": TEXTS}), path, row_group_size=100, data_page_size=500, **options
    )
    column = pq.read_metadata(path).row_group(1).column(0)
    content = bytearray(path.read_bytes())
    middle = column.data_page_offset + column.total_compressed_size // 2
    content[middle : middle + 64] = b"\xff" * 64
    path.write_bytes(content)


def checked_page(folder: Path) -> None:
    """Flips a bit of a page that has a checksum."""
    path = folder / "bit.parquet"
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    pq.write_table(
        pa.table({"text": TEXTS}), path, row_group_size=100, write_page_checksum=True, **options
    )
    flip_bit(path, path.read_bytes().index(b"text number 123") + 5)


def of_file(arrange: Arrange, name: str, flags: str, code: int, sentence: str) -> Case:
    return arrange, f"build --input {name} --output new {flags}", code, sentence


WHOLE = {"text": TEXTS}
TWICE = pa.table([["a"], ["b"]], names=["text", "text"])
FILES = [
    of_file(arrange, name, flags, 1, sentence)
    for arrange, name, flags, sentence in (
        (corrupt_page, "page.parquet", "", "page.parquet, row group 1: cannot be decoded"),
        (checked_page, "bit.parquet", "", "bit.parquet, row group 1: cannot be decoded"),
        (write("no.parquet", "text\n" * 99), "no.parquet", "", "is not a readable parquet"),
        (write("0.parquet"), "0.parquet", "", "has no bytes"),
        (parquet("a.parquet", {"body": TEXTS}), "a.parquet", "", "no column 'text'; its columns"),
        (parquet("b.parquet", {"text": [1]}), "b.parquet", "", "int64, expected a string type"),
        (parquet("c.parquet", {"text": [["a"]]}), "c.parquet", "", "expected a string type"),
        (parquet("d.parquet", WHOLE), "d.parquet", "--id_column=key", "no column 'key'"),
        (
            parquet("e.parquet", {"text": ["a"], "id": [["b"]]}),
            *("e.parquet", "--id_column=id", "expected strings or numbers"),
        ),
        (
            lambda folder: pq.write_table(TWICE, folder / "f.parquet"),
            *("f.parquet", "", "has several columns 'text'"),
        ),
        (parquet("g.parquet", {"text": invalid(150)}), "g.parquet", "", "row 150"),
        (
            parquet("h.parquet", {"text": TEXTS, "id": invalid(299)}),
            *("h.parquet", "--id_column=id", "row 299: its 'id' is not valid UTF-8"),
        ),
        (parquet("i.parquet", {"text": pa.array([], "string")}), "i.parquet", "", "0 rows"),
        (
            parquet("j.parquet", {"text": pa.array([None] * 5, "string")}),
            *("j.parquet", "", "has no documents: 5 rows"),
        ),
        *(
            (write(name), name, "", f"{name} has no bytes")
            for name in (
                "0.jsonl",
                "0.jsonl.gz",
                "0.jsonl.zst",
                "0.jsonl.bz2",
                "0.jsonl.xz",
                "0.csv",
            )
        ),
        (write("p.jsonl.gz", JSONL), "p.jsonl.gz", "", "is not gzip compressed"),
        (write("p.jsonl.zst", JSONL), "p.jsonl.zst", "", "is not zstd compressed"),
        (write("q.jsonl.gz", gzip.compress(JSONL)[:-9]), "q.jsonl.gz", "", "truncated"),
        (write("q.jsonl.zst", zstd(JSONL)[:-1]), "q.jsonl.zst", "", "truncated"),
        (write("r.jsonl.zst", zstd(JSONL) + b"(\xb5/\xfd"), "r.jsonl.zst", "", "truncated"),
        (write("r.jsonl.gz", gzip.compress(JSONL) + b"tail"), "r.jsonl.gz", "", "damaged"),
        (
            write("a.jsonl", with_line(150, b'{"text":')),
            "a.jsonl",
            "",
            "a.jsonl, line 151, row 150",
        ),
        (write("b.jsonl", with_line(0, b"{")), "b.jsonl", "", "line 1, row 0: is not valid"),
        (write("c.jsonl", with_line(9, b"17")), "c.jsonl", "", "row 9: holds a number"),
        (write("d.jsonl", with_line(9, b'{"text":7}')), "d.jsonl", "", "is a number, exp"),
        (write("e.jsonl", with_line(9, b'{"a":7}')), "e.jsonl", "", "row 9: has no field"),
        (write("f.jsonl", with_line(9, b'{"text":"\xff"}')), "f.jsonl", "", "line 10, row 9"),
        (write("g.jsonl", b'{"body":"a"}\n'), "g.jsonl", "", "has no field 'text'; its"),
        (write("h.jsonl", JSONL), "h.jsonl", "--id_column=key", "has no field 'key'"),
    )
] + [
    of_file(write(name), name, "", 2, f"{name}; expected .arrow")
    for name in ("a.jsonl.lz4", "a.xlsx", "a.parquet.gz")
]

BUILD = "build --input in/0.parquet --output new"
FLAGS = [
    *(
        (f"{BUILD} {flags}", flags.split()[-1].partition("=")[0])
        for flags in (
            *("--shard_tokens=0", "--shard_tokens=-1", "--shard_tokens=abc", "--block_bytes=0"),
            *("--test_fraction=2", "--test_fraction=nan", "--test_fraction=abc"),
            *("--test_fraction=0.1 --test_shards=1", "--max_bad_rows=-1", "--max_bad_rows=101%"),
            *("--max_bad_rows=-1%", "--max_bad_rows=1/1000%", "--dataset=some/where"),
            *("--dataset_config=main", "--no_such_flag=1", "--direct_num_worker=2"),
            *("--direct_num_workers=2", "--direct_running_mode=multi_processing", "--workers=0"),
            *("--num_workers=2", "--runner=FlinkRunner --workers=2", "--overwrite=perhaps"),
            *("--tokenizer=cl100k", "--input=nothing*.parquet"),
            "--input=nowhere://bucket/*.parquet",
        )
    ),
    (f"{BUILD} --output=nowhere://bucket/folder", "nowhere://bucket/folder"),
    (f"{BUILD} word", "unexpected argument 'word': files follow --input."),
    ("build", "give --input or --dataset, and --output."),
    ("build --output new", "give --input or --dataset."),
    ("export", "give FOLDER, --output and --to."),
    ("build --input in/0.parquet", "give --output."),
    ("build --input in/0.parquet in/../in/0.parquet --output new", "in/0.parquet is matched twice"),
    ("find out --id 3", "unknown command 'find'. Did you mean inspect --find?"),
    (f"{BUILD} --tokenizer cl100k", "(cl100k_base, gpt2, o200k_base"),
    ("bulid", "unknown command 'bulid'. Did you mean build?"),
    ("--input x", "--input: give a command first, such as fineshards build --input."),
    ("version more", "fineshards version takes nothing but --json."),
    ("help build verify", "give one command: fineshards help COMMAND, or"),
    ("help biuld", "unknown command 'biuld'. Did you mean build?"),
    ("completion bsh", "fineshards completion bash|zsh|fish. Did you mean bash?"),
    ("completion", "give a shell: fineshards completion bash|zsh|fish."),
    (f"{BUILD} --shard_tokens 1e20", "--shard_tokens must be less than 2^63"),
    ("build --outptu out --input x", "unknown flag --outptu. Did you mean --output?"),
    (
        "append out --input x --output out",
        "unknown flag --output: neither fineshards nor Beam has it. See",
    ),
    (
        "build --input x --shrd_tokens 1",
        "unknown flag --shrd_tokens. Did you mean --shard_tokens? Also: give --output.",
    ),
    (
        "build --inptu x --output y",
        "unknown flag --inptu. Did you mean --input? Also: give --input or --dataset.",
    ),
    (
        f"{BUILD} --num_workers=3 --test_fraction 2 --job_endpoint=h:1",
        "fineshards: --test_fraction must lie between 0 and 1, got 2.",
    ),
    ("build --input x --num_workers=3", "fineshards: give --output."),
    ("stats --quick", "unknown flag --quick. Also: give FOLDER. See"),
    ("verify out --sample x --jsno", "--jsno. Did you mean --json? Also: --sample"),
    (
        f"{BUILD} --dtype unit16",
        "--dtype: must be auto or uint16 or uint32, got 'unit16'. Did you mean uint16? See",
    ),
    (f"{BUILD} --test 1", "Did you mean --test_fraction or --test_input or --test_shards?"),
    (f"{BUILD} --shrd-tokens 1", "Did you mean --shard_tokens?"),
    (f"{BUILD} --num-wokers=3", "Did you mean --num_workers?"),
    (f"{BUILD} --verbose", "unknown flag --verbose: neither"),
    (f"{BUILD} --shard_tokens 1.5", "a whole number such as 100000000, 100M"),
    (f"{BUILD} --shard_tokens 64MiB", "must be a whole number such as"),
    (f"{BUILD} --block_bytes 0.3KiB", "a whole number of bytes such as 64M"),
    (f"{BUILD} --overwrite=maybe", "must be true or false, got 'maybe'"),
    ("verify out --jsno", "unknown flag --jsno. Did you mean --json?"),
    ("verify", "give FOLDER."),
    ("verify out more", "unexpected argument 'more'."),
    ("verify out --sample some", "--sample: must be a whole number such as 100000000"),
    ("verify out --sample 101%", "--sample is a share such as 1%, or a number of documents"),
    ("inspect out --find", "give an id or a token, and not both"),
    ("inspect out --find --shard=train/0 --token=1", "of the whole dataset alone"),
]

STEP = "[[steps]]\nuse = "
RECIPES = [
    (f'{STEP}"lenght"', "step 1 (lenght): there is no step 'lenght'"),
    (f'{STEP}"length"\nmin_char = 3', "unknown parameter 'min_char'; it has"),
    (f'{STEP}"length"\nmin_chars = "3"', "min_chars is '3', expected a whole number"),
    (f'{STEP}"length"\nmin_chars = -3', "min_chars is -3, expected a whole number"),
    (f'{STEP}"where"', "step 1 (where): give the parameter sql."),
    (f'{STEP}"minhash"\nrule = "later"', "rule is 'later', expected one of earlier, components"),
    ("[[steps]]\nname = 3", "step 1: give the step's name"),
    ("[[step]]\nuse = 'exact'", "unknown key 'step'; a recipe has description, build, steps"),
    ("steps = 3", "steps must be tables"),
    ("build = 3", "build must be a table"),
    ("[[steps]\nuse", "is not TOML: "),
    ("\x00", "is not TOML: "),
    ("[build]\nshard_token = 3", "build.shard_token is not a flag"),
    (
        "[build]\nshard_tokens = 'x'",
        "--shard_tokens must be a whole number such as 100000000, 100M or 1e8, got 'x'",
    ),
    (f'{STEP}"no.such:function"', "no.such"),
    (f'{STEP}"sample"\nrate = nan', "(sample): sample: rate is nan, expected a number from"),
    (f'{STEP}"builtins:dict"\na = [1.0, -inf]', "a is [1.0, -inf], expected what JSON has"),
    (
        f'{STEP}"builtins:dict"\nsince = 2020-01-02',
        "step 1 (builtins:dict): builtins:dict: since is datetime.date(2020, 1, 2), expected",
    ),
    (
        f'{STEP}"builtins:dict"\na.b = 2020-01-02T03:04:05Z',
        "finite numbers, and dates as text, in quotes.",
    ),
    (f'{STEP}"builtins:dict"\na = 03:04:05', "a is datetime.time(3, 4, 5), expected what JSON has"),
    (f'{STEP}":"', "step 1 (:): "),
]
WITH_RECIPE = f"{BUILD} --recipe=r.toml"
MORE_RECIPES: list[Case] = [
    (None, f"{BUILD} --recipe=finweb", 2, "--recipe finweb: there is no such file"),
    (None, f"{BUILD} --recipe=in", 2, "--recipe in"),
    (
        write("r.toml", f'{STEP}"length"\nmin_chars = 2'),
        *(f"{WITH_RECIPE} --keep_keys", 2, "--keep_keys goes with deduplication"),
    ),
    (write("r.toml", f'{STEP}"where"\nsql = "score > 0.5"'), WITH_RECIPE, 1, "score"),
    (write("r.toml", f'{STEP}"exact"\nby = "column:score"'), WITH_RECIPE, 1, "'score'"),
]

EXPORTS = [
    ("--to megatrn", "there is no such format. Did you mean megatron"),
    ("--to llmc --eot end", "--eot end: --to llmc has the EOT at the begin only"),
    ("--to megatron --sequence_length 5", "has no rows"),
    ("--to raw --no_masks", "only datasets of conversations have masks"),
    ("--to modded-nanogpt", "of cl100k_base go up to 100,276"),
    ("--to raw --dtype uint16", "Use --dtype uint32"),
    ("--to modded-nanogpt --dtype uint32", "holds uint16 only"),
    ("--to raw --tokens_per_file 0", "--tokens_per_file must be at least 1, got 0"),
    ("--to raw --split both", "--split: must be test or train or all, got 'both'. See"),
    ("--to raw --eot both", "--eot: must be "),
    ("--to raw --tokens_per_fle=5", "unknown flag --tokens_per_fle"),
    ("--to raw --runner=NoRunner", "NoRunner"),
    ("--to raw more", "unexpected argument 'more'"),
]
FOLDERS: list[Case] = [
    *(
        (write(f"new/{name}", "precious"), f"{BUILD} {flags}", 2, "Move it away")
        for flags in ("", "--overwrite")
        for name in ("train/notes.txt", "train/train_1.npy", "testing.txt", "checkpoints/model.pt")
    ),
    *(
        (write("file", "precious"), f"{BUILD} --output {place} {flags}", 1, f"{place}/")
        for flags in ("", "--overwrite")
        for place in ("file", "file/below", "/proc/fineshards/out")
    ),
    (write("file"), "verify file", 1, "holds no finished dataset"),
    (write("file"), "status file", 1, "holds no fineshards job"),
    (None, "build --input in/0.parquet --output x", 2, "holds an export. Choose another --output"),
    (write("y/notes.txt"), "export out --to raw --output y", 2, "notes.txt is in the way"),
    (None, "export out --to raw --output out/sub", 2, "is in the dataset's folder"),
    (
        lambda folder: (folder / "link").symlink_to(folder / "out"),
        *("export out --to raw --output link/sub", 2, "is in the dataset's folder"),
    ),
    (
        lambda folder: shutil.copytree(folder / "out", folder / "d"),
        *("export out --to raw --output d", 2, "holds a dataset"),
    ),
    (None, "export nothing --to raw --output y", 1, "nothing"),
    *(
        (None, command.replace(" ", " x ", 1), 1, "x is an export, not a dataset: ")
        for command in (
            *("report ", "inspect ", "stats ", "inspect --find --token=0", "publish "),
            *("repair ", "redact --documents=1", "export --to=raw --output=y"),
            "explain --document=1 --sequence_length=8",
        )
    ),
]


APPEND = "append out --input in/1.parquet"
APPENDS: list[Case] = [
    (
        parquet("o.parquet", {"body": ["a"]}),
        *("append out --input o.parquet", 1, "Choose one with --text_column of fineshards build."),
    ),
    (
        lambda folder: flip_bit(folder / "out/metadata/vocabulary.tiktoken", 1000),
        *(APPEND, 1, "metadata/vocabulary.tiktoken has sha256 "),
    ),
    (
        lambda folder: (folder / "out/metadata/manifest.json").unlink(),
        *(APPEND, 1, "metadata/manifest.json is missing. Put it back"),
    ),
    (None, "append nowhere --input in/1.parquet", 1, "nowhere holds no finished dataset"),
    # The value of an option of Beam is no flag.
    (None, "append nowhere --input x --job_name dtype", 1, "nowhere holds no finished dataset"),
    *(
        (
            None,
            f"build --append --output out --input in/1.parquet {flag}",
            *(2, f"{flag.partition('=')[0]} is the dataset's own, and an append takes it"),
        )
        for flag in ("--shard_tokens=7", "--shard_tokens=100000000", "--test_fraction=0.1")
    ),
    (None, f"{APPEND} --text-column=body", 2, "--text_column is the dataset's own, and an append"),
    (None, f"{APPEND} --nothing", 2, "See fineshards append --help."),
]

CASES: list[Case] = [
    *FILES,
    *((None, command, 2, sentence) for command, sentence in FLAGS),
    *((write("r.toml", content), WITH_RECIPE, 2, sentence) for content, sentence in RECIPES),
    *MORE_RECIPES,
    *((None, f"export out --output y {flags}", 2, sentence) for flags, sentence in EXPORTS),
    *FOLDERS,
    *APPENDS,
]


@pytest.fixture(scope="module")
def arranged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files in `in`, a dataset of the first in `out`, and an export of it in `x`."""
    folder = tmp_path_factory.mktemp("refusals")
    write_parts(folder / "in", made_up_rows(2, 40), 20)
    build(folder / "out", folder / "in/0.parquet", "--shard_tokens=400", "--test_fraction=0.3")
    fineshards.export(folder / "out", folder / "x", "raw")
    return folder


@pytest.mark.parametrize(
    ("arrange", "command", "code", "sentence"),
    CASES,
    ids=[f"{number}-{case[1].split()[0]}" for number, case in enumerate(CASES)],
)
def test_a_refusal_is_one_sentence_and_changes_nothing(
    arranged: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arrange: Arrange | None,
    command: str,
    code: int,
    sentence: str,
) -> None:
    folder = Path(shutil.copytree(arranged, tmp_path / "place"))
    monkeypatch.chdir(folder)
    if arrange is not None:
        arrange(folder)
    before = files_in(folder)
    capfd.readouterr()
    assert main(shlex.split(command)) == code
    printed = capfd.readouterr()
    *others, said = printed.err.splitlines()
    assert sentence in said
    assert said.startswith("fineshards: ")
    assert said.endswith((".", "?", "'"))
    assert "Traceback" not in printed.err
    after = files_in(folder)
    assert {name: after.get(name) for name in before} == before
    assert "new/metadata/manifest.json" not in after
    if code == 2:
        assert (printed.out, others, after) == ("", [], before)
