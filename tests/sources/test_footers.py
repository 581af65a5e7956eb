"""Parquet footers: encrypted and damaged ones end in a sentence, and each is parsed once."""

import base64
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest
from support.fresh_interpreter import run_program
from support.source_files import COLUMNS, blocks_of, describe, read_all
from test_parquet_cost import CountingFile

from fineshards.errors import InputError
from fineshards.sources.formats import parquet
from fineshards.sources.formats.format import FORMATS

TABLE = pa.table(
    {"text": [f"text {n}" for n in range(30)], "id": [*map(str, range(30))], "n": [[1, 2]] * 30}
)


class Keys(encryption.KmsClient):
    """Keeps keys where everyone can see them."""

    def __init__(self, config: encryption.KmsConnectionConfig) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


def write_encrypted(path: Path, column: str, plaintext_footer: bool = True) -> Path:
    config = encryption.EncryptionConfiguration(
        footer_key="footer",
        column_keys={"column": [column]},
        plaintext_footer=plaintext_footer,
        uniform_encryption=False,
    )
    properties = encryption.CryptoFactory(Keys).file_encryption_properties(
        encryption.KmsConnectionConfig(), config
    )
    with pq.ParquetWriter(path, TABLE.schema, encryption_properties=properties) as writer:
        writer.write_table(TABLE, row_group_size=10)
    return path


# Only a process of its own shows that a file does not end the process.
_READ = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from support.source_files import read_all
from fineshards.errors import InputError
from fineshards.shards.job.settings import Columns
for path in sys.argv[2:]:
    try:
        print(len(read_all(Path(path), columns=Columns("text", "id", sys.argv[1] == "id")).rows))
    except InputError as error:
        print(error)
"""


def test_an_encrypted_column_that_is_needed_is_one_sentence(tmp_path: Path) -> None:
    text = write_encrypted(tmp_path / "text.parquet", "text")
    ids = write_encrypted(tmp_path / "id.parquet", "id")
    footer = write_encrypted(tmp_path / "footer.parquet", "text", plaintext_footer=False)
    words = "row group 0: a column that is needed is encrypted. Decrypt the file, or exclude it."
    done = run_program(_READ, "default", text, ids, footer)
    assert done.returncode == 0, done.stderr
    of_text, of_ids, of_footer = done.stdout.splitlines()
    assert of_text == f"{text}, {words}"
    assert of_ids == f"{ids}, {words}"  # an id is read where there is one
    assert "Could not read encrypted metadata" in of_footer
    done = run_program(_READ, "id", ids)
    assert (done.returncode, done.stdout) == (0, f"{ids}, {words}\n"), done.stderr


# Every mutation is a function of its number. A child that dies has printed the number last.
_DAMAGE = """
import io, random, sys
from pathlib import Path
sys.path.insert(0, "tests")
from support.source_files import COLUMNS
from fineshards.errors import InputError
from fineshards.shards.job.records import SourceFile
from fineshards.sources.formats.format import FORMATS
from fineshards.sources.reading import rows_of
kind = FORMATS["parquet"]
content = Path(sys.argv[1]).read_bytes()
size = int.from_bytes(content[-8:-4], "little")
outcomes = {"read": 0, "sentence": 0}
for number in range(int(sys.argv[2])):
    print(number, flush=True)
    draw = random.Random(number)
    damaged = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        at = len(content) - 8 - size + draw.randrange(size)
        damaged[at] = draw.choice([damaged[at] ^ 1 << draw.randrange(8), draw.randrange(256)])
    file = SourceFile(0, f"{number}.parquet", len(damaged), "", "parquet", "none")
    try:
        for block in kind.blocks(file, io.BytesIO(damaged), COLUMNS, 1):
            for batch in kind.read(file, io.BytesIO(damaged), block, COLUMNS):
                rows_of(batch, COLUMNS, True, ())
        outcomes["read"] += 1
    except InputError:
        outcomes["sentence"] += 1
print(min(outcomes.values()) > 0)
"""


@pytest.mark.long
def test_a_damaged_footer_ends_no_process(tmp_path: Path) -> None:
    plain = tmp_path / "plain.parquet"
    pq.write_table(TABLE, plain, row_group_size=10)
    encrypted = write_encrypted(tmp_path / "encrypted.parquet", "n")
    # Mutations 1820 and 2757 of `plain` end the process if pyarrow is asked directly.
    for path, count in ((plain, 3_000), (encrypted, 300)):
        done = run_program(_DAMAGE, path, str(count))
        assert done.returncode == 0, (path, done.stdout.splitlines()[-1:], done.stderr)
        assert done.stdout.splitlines()[-1] == "True", path


def test_a_column_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"], "wxyz": ["b"]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"wxyz", b"wx\xff\xfe"))
    with pytest.raises(InputError, match=r"the name of a column is not valid UTF-8: b'wx\\xff"):
        blocks_of(path)


def test_a_footer_that_contradicts_itself_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE, path, row_group_size=1_000)
    content = path.read_bytes()
    # The row group's number of rows, 30 as a zigzag varint, follows its last column.
    at = content.index(b"\x16\x3c", content.rindex(b"element"))
    path.write_bytes(content[:at] + b"\x16\x3e" + content[at + 2 :])
    with pytest.raises(InputError, match=r"its footer says 30 rows, but its row groups have 31"):
        blocks_of(path)


def test_the_cost_of_many_row_groups_is_linear(tmp_path: Path) -> None:
    """The footer is read once, and small row groups are read together."""
    path = tmp_path / "a.parquet"
    texts = [f"text {n}" for n in range(20_000)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=1)
    file = describe(path)
    footer = pq.read_metadata(path)
    assert footer.num_row_groups == 20_000
    with CountingFile(path) as opened:
        blocks = FORMATS["parquet"].blocks(file, opened, COLUMNS, 1 << 14)
        assert len(blocks) > 10
        of_footer = opened.bytes_read
        assert footer.serialized_size <= of_footer < 2 * footer.serialized_size
        batches = [
            batch
            for block in blocks
            for batch in FORMATS["parquet"].read(file, opened, block, COLUMNS)
        ]
        assert opened.bytes_read - of_footer < path.stat().st_size
    assert [text for batch in batches for text in batch.columns["text"].to_pylist()] == texts
    assert len(batches) <= len(texts) // 2048 + len(blocks)


def test_kept_footers_are_bounded_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE, path)
    size = pq.read_metadata(path).serialized_size
    for limit, most in ((1, 1), (3 * size, 3)):
        monkeypatch.setattr(parquet, "_FOOTER_BYTES", limit)
        for number in range(7):
            other = path.rename(tmp_path / f"{limit}-{number}.parquet")
            blocks_of(path := other)
            assert 1 <= len(parquet._footers) <= most


def test_a_footer_is_of_one_version_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for texts in (["a", "b"], ["c", "d"]):
        pq.write_table(pa.table({"text": texts}), path)
        assert read_all(path).texts == texts
