"""The shard format: NumPy's own header, made from a token count; any other is refused."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineshards.shards.npy import file_bytes, header, parse_header


def numpy_header(
    shape: tuple[object, ...], descr: object = "<u4", fortran_order: bool = False
) -> bytes:
    """The header that numpy writes."""
    file = BytesIO()
    fields = {"descr": descr, "fortran_order": fortran_order, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()


@given(st.integers(0, 2**63))
def test_header_is_the_one_numpy_writes_for_any_count(tokens: int) -> None:
    assert header(tokens) == numpy_header((tokens,))
    assert parse_header(header(tokens)) == tokens


def test_header_takes_numpy_counts_and_prints_plain_ints() -> None:
    assert header(np.int64(5)) == header(5)  # type: ignore[arg-type]
    assert b"int64" not in header(np.int64(5))  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [0, 1, 2, 1000])
def test_numpy_saves_the_same_bytes_and_loads_them(tmp_path: Path, tokens: int) -> None:
    payload = (np.arange(tokens, dtype="<u4") * 4_294_967) + 7
    saved = BytesIO()
    np.save(saved, payload)
    ours = header(tokens) + payload.tobytes()
    assert ours == saved.getvalue()
    assert len(ours) == file_bytes(tokens)
    path = tmp_path / "train_0000.npy"
    path.write_bytes(ours)
    for loaded in (np.load(path), np.load(path, mmap_mode="r")):
        assert loaded.dtype == np.dtype("<u4")
        assert loaded.shape == (tokens,)
        assert np.array_equal(loaded, payload)


@pytest.mark.parametrize(
    ("first_bytes", "found"),
    [
        (numpy_header((7,), "<u2"), "'<u2'"),
        (numpy_header((7,), "<u8"), "'<u8'"),
        (numpy_header((7,), "<i4"), "'<i4'"),
        (numpy_header((7,), "<f4"), "'<f4'"),
        (numpy_header((7,), "|u1"), "'|u1'"),
        (numpy_header((7,), "|O"), "'|O'"),
        (numpy_header((7,), ">u4"), "'>u4'"),
        (numpy_header((7,), [("a", "<u4")]), r"\('a', '<u4'\)"),
        (numpy_header((7,), fortran_order=True), "'fortran_order': True"),
        (numpy_header((2, 3)), r"\(2, 3\)"),
        (numpy_header((7, 1), fortran_order=True), r"\(7, 1\)"),
        (numpy_header(()), r"'shape': \(\)"),
        (numpy_header((-1,)), r"\(-1,\)"),
        (header(7).replace(b"(7,)", b"(7.)"), "7"),
        (header(7).replace(b"(7,), ", b"(True,)"), "True"),
        (header(7).replace(b"'shape'", b"'shade'"), "shade"),
        (header(7).replace(b"<u4", b"=u4"), "=u4"),
        (b"\x93NUMPY\x02\x00" + header(7)[8:], r"NUMPY\\x02"),
        (b"\x93NUMPY\x01\x01" + header(7)[8:], r"NUMPY\\x01\\x01"),
        (b"PAR1" + bytes(124), r"not a \.npy file.*PAR1"),
        (b"\x00" * 128, r"not a \.npy file.*\\x00"),
        (header(7)[:10] + b"\x00" * 118, r"\\x00"),
        (header(7)[:10] + b"(" * 118, r"\(\(\("),
        (header(7)[:10] + b"[1, 2]".ljust(117) + b"\n", r"\[1, 2\]"),
        (header(7)[:8] + b"\x77\x00" + header(7)[10:], "expected that of"),
    ],
)
def test_every_other_header_is_refused_with_what_was_found(first_bytes: bytes, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        parse_header(first_bytes)


@pytest.mark.parametrize("length", [0, 5, 6, 7, 8, 9, 10, 60, 90, 127])
def test_a_file_shorter_than_a_header_is_refused_with_its_length(length: int) -> None:
    with pytest.raises(ValueError, match=rf"\b{length} bytes\b"):
        parse_header(header(1_000_000)[:length])


@given(st.integers(0, 2**40), st.integers(0, 127), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_gives_another_count(
    tokens: int, position: int, value: int
) -> None:
    changed = bytearray(header(tokens))
    changed[position] = value
    try:
        parsed = parse_header(bytes(changed))
    except ValueError:
        return
    assert bytes(changed) == numpy_header((parsed,))


@given(st.binary(max_size=118))
def test_other_bytes_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_header(header(7)[:10] + text.ljust(118))


def test_threads_parse_headers_at_the_same_time() -> None:
    """Python 3.11's `ast` fails here when garbage is collected while it builds its tree."""

    def yield_to_other_threads(phase: str, info: dict[str, int]) -> None:
        time.sleep(0)

    threshold = gc.get_threshold()
    gc.set_threshold(5)
    gc.callbacks.append(yield_to_other_threads)
    try:
        with ThreadPoolExecutor(4) as pool:
            parsed = list(pool.map(lambda n: parse_header(header(n)), range(8000)))
    finally:
        gc.callbacks.remove(yield_to_other_threads)
        gc.set_threshold(*threshold)
    assert parsed == list(range(8000))
