"""Training on a dataset of which documents were redacted."""

from pathlib import Path

import numpy as np
import pytest
from support.faulty_proxy import Proxy
from support.growing import build, write_rows
from support.oracle import EOT, files_in
from support.redacted import documents_of

from fineshards import BatchLoader, Packing, TokenDataset, WholeDocuments
from fineshards.maintenance.redact import redact
from fineshards.shards.dataset_files import Dataset
from fineshards.storage.open import open_storage

pytestmark = pytest.mark.growing
PACKED = ("inputs", "targets", "position_ids", "document_ids", "cu_seqlens", "max_seqlen")


def test_a_training_goes_on_without_them(dataset: Path) -> None:
    before = TokenDataset(dataset, sequence_length=16)
    loader = BatchLoader(before, batch_size=4, seed=2)
    next(loader)
    state = loader.state_dict()
    whole = before.gather(np.arange(len(before)))
    before.close()
    number = next(
        n
        for n, (_, _, tokens) in enumerate(documents_of(dataset))
        if len(tokens) > 100 and _split_of(dataset, n) == "train"
    )
    redact(str(dataset), documents=[number])
    resumed = BatchLoader(
        TokenDataset(dataset, sequence_length=16),
        batch_size=4,
        seed=2,
        fields=("targets", "loss_mask"),
    )
    resumed.load_state_dict(state)
    batch, numbers = next(resumed), [drawn.sample for drawn in resumed.samples(1)]
    mask = batch["loss_mask"]
    assert np.array_equal(batch["targets"][mask], whole[numbers][:, 1:][mask])
    # It counts in no generation.
    for generation in (1, 2):
        opened = TokenDataset(dataset, sequence_length=16, generation=generation)
        now = opened.gather(np.arange(len(opened)))[:, 1:]
        gone = now != whole[: len(opened)][:, 1:]
        assert set(now[gone].tolist()) == {EOT}
        assert gone.sum() > 16
        (everything,) = BatchLoader(
            opened, len(opened), shuffle=False, epochs=1, fields=["loss_mask"]
        )
        assert np.array_equal(everything["loss_mask"], now != EOT)


def _split_of(folder: Path, number: int) -> str:
    opened = Dataset.open(open_storage(str(folder)))
    splits = {split for split, *_ in opened.ranges(number)}
    return splits.pop() if len(splits) == 1 else "both"


@pytest.mark.parametrize("packing", [Packing(rows=8, shuffle_windows=2), None])
def test_documents_begin_where_they_began_before_a_redaction(
    dataset: Path, packing: Packing | None
) -> None:
    """Also in earlier generations, in the rest of a running epoch, and while it is not finished."""

    def opened(generation: int | None) -> BatchLoader:
        source = TokenDataset(dataset, sequence_length=32, generation=generation, mapped=False)
        return BatchLoader(source, 4, 7, packing=packing, fields=PACKED, epochs=1)

    def documents(loader: BatchLoader) -> list[list[tuple[str, int, int, int, int]]]:
        return [
            [(each.file, each.row, each.begin, each.end, each.position) for each in row]
            for step in (0, 3)
            for _, row in loader.explain(step)
        ]

    before = {generation: list(opened(generation)) for generation in (1, 2)}
    explained = {generation: documents(opened(generation)) for generation in (1, 2)}
    running = opened(2)
    assert equal(next(running), before[2][0], redacted=False)
    state = running.state_dict()
    starts = {n: len(tokens) for n, (_, _, tokens) in enumerate(documents_of(dataset))}
    long = sorted(starts, key=starts.__getitem__)[-3:]
    redact(str(dataset), documents=sorted({*long, long[0] + 1, 5}))
    running.batches.sources[0].close()  # its shards are opened again
    for batch, expected in zip(running, before[2][1:], strict=True):
        assert equal(batch, expected, redacted=True)
    resumed = opened(None)
    resumed.load_state_dict(state)
    for batch, expected in zip(resumed, before[2][1:], strict=True):
        assert equal(batch, expected, redacted=True)
    for generation, batches in before.items():
        for batch, expected in zip(opened(generation), batches, strict=True):
            assert equal(batch, expected, redacted=True)
        assert documents(opened(generation)) == explained[generation]
    again = zip(opened(2), before[2], strict=True)
    assert any((batch["inputs"] != expected["inputs"]).any() for batch, expected in again)


def test_whole_documents_stay_where_they_were(dataset: Path) -> None:
    """Also those that begin in one window and end in another."""

    def opened() -> BatchLoader:
        whole = WholeDocuments(TokenDataset(dataset, sequence_length=8, mapped=False), rows=2)
        return BatchLoader(whole, 4, shuffle=False, fields=PACKED, epochs=1)

    before = list(opened())
    redact(str(dataset), documents=list(range(0, len(documents_of(dataset)), 2)))
    for batch, expected in zip(opened(), before, strict=True):
        assert equal(batch, expected, redacted=True)


def equal(batch: dict[str, np.ndarray], expected: dict[str, np.ndarray], redacted: bool) -> bool:
    """Whether all but the tokens is equal, and tokens that differ are EOT."""
    for name, values in batch.items():
        differ = np.asarray(values != expected[name])
        if name in ("inputs", "targets"):
            assert differ.any() <= redacted
            assert set(values[differ].tolist()) <= {EOT}
        elif np.any(differ):
            return False
    return True


@pytest.mark.cloud
def test_documents_without_text_cost_no_requests_about_redactions(
    cloud: Proxy, tmp_path: Path
) -> None:
    """Their EOTs follow one another as those of a later redaction: one look per opened shard."""
    texts = ["" if n % 8 < 3 else f"document {n} of a few words" for n in range(400)]
    source = write_rows(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    build(tmp_path / "out", source, "--shard_tokens=1000")
    storage = open_storage("gs://data/out")
    for name, content in files_in(tmp_path / "out").items():
        storage.write(name, content)

    def batches(folder: object) -> BatchLoader:
        dataset = TokenDataset(str(folder), sequence_length=32)
        return BatchLoader(dataset, 2, 1, fields=PACKED, shuffle=False, epochs=1, prefetch=0)

    expected, running = list(batches(tmp_path / "out")), batches("gs://data/out")
    before = cloud.count("metadata/")
    for number, batch in enumerate(expected[:-4]):
        assert equal(next(running), batch, redacted=False), number
    shards = len(list((tmp_path / "out/train").iterdir()))
    assert 0 < shards < 6 < len(expected)
    assert cloud.count("metadata/") - before <= 2 * shards + 5
    redact("gs://data/out", documents=[399, 398, 397])
    running.batches.sources[0].close()  # its shards are opened again
    for batch, other in zip(running, expected[-4:], strict=True):
        assert equal(batch, other, redacted=True)
