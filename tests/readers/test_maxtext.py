"""MaxText's sources for Grain read our files for Megatron, for OLMo, and
ArrayRecord.
"""

import sys
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from conftest import Exported
from grain.python import ArrayRecordDataSource
from maxtext.input_pipeline import olmo_data, tokenizer
from maxtext.input_pipeline._mmap_datasource import create_mmap_source
from maxtext.input_pipeline.olmo_data_grain import OlmoNpyDataSource
from maxtext.input_pipeline.protos import example_pb2
from support.dataset_contents import Contents

# Google's clusters alone need it, and it needs all of orbax.
for name in ("pathwaysutils", "pathwaysutils.elastic"):
    sys.modules[name] = MagicMock()
from maxtext.input_pipeline.grain_data_processing import (  # noqa: E402
    get_datasets,
    pretrain_preprocessing_pipeline,
)

LENGTH = 128


def test_maxtext_reads_the_files_for_megatron(dataset: Contents, exported: Exported) -> None:
    folder = exported("megatron", "--split", "train", "--tokens_per_file", "100k")
    tokens = np.concatenate(dataset.ended("train"))
    assert len([*folder.glob("*.idx")]) > 3
    source = create_mmap_source(str(folder), False, LENGTH, dataset.eot)
    rows = [source[number]["text"] for number in range(len(source))]
    assert np.array_equal(np.concatenate(rows), tokens[: len(tokens) // LENGTH * LENGTH])


def test_maxtext_reads_the_files_for_olmo(dataset: Contents, exported: Exported) -> None:
    (path,) = (exported("olmo") / "train").glob("*.npy")
    size = partial(olmo_data.read_raw_metadata_from_path, dtype=dataset.dtype)
    index = olmo_data.build_index(
        [(str(path), "train")], LENGTH, tokenizer="any", header_reader=size
    )
    source = OlmoNpyDataSource(index)
    rows = [source[number]["tokens"] for number in range(len(source))]
    tokens = np.concatenate(dataset.ended("train"))
    assert np.array_equal(np.concatenate(rows), tokens[: len(tokens) // LENGTH * LENGTH])


@pytest.mark.parametrize(
    ("flags", "packing"), [([], "concat_then_split"), ([f"--sequence_length={LENGTH}"], None)]
)
def test_maxtext_reads_records(
    dataset: Contents,
    exported: Exported,
    flags: list[str],
    packing: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its own pipeline, but for the tokenizer, which only says what rows are padded with."""
    # MaxText takes files in the order of the folder, so that several could be in any order.
    folder = exported("array_record", "--tokens_per_file=2M", *flags)
    padding = 1 << 30  # no token
    monkeypatch.setattr(
        tokenizer, "build_tokenizer", lambda *_: SimpleNamespace(pad_id=padding, bos_id=None)
    )
    config = MaxTextConfig(grain_packing_type=packing, packing=packing is not None)
    rows = get_datasets(*(str(folder / "train-*"), "arrayrecord", False, 1, 1, 1, 0, 1, 0, 1, 1, 1))
    batches = pretrain_preprocessing_pipeline(rows, config, ["text"], False, 0, 1)
    inputs, targets, segments = (
        np.concatenate(each)
        for each in zip(
            *((b["inputs"], b["targets"], b["targets_segmentation"]) for b in batches), strict=True
        )
    )
    tokens = dataset.tokens["train"]
    assert np.array_equal(inputs.ravel()[: len(tokens)], tokens)
    learned = segments > 0
    # All labels but the last one of each row.
    assert np.array_equal(targets[learned], np.delete(tokens, np.s_[::LENGTH])[: learned.sum()])
    assert learned.sum() == len(tokens) - -(-len(tokens) // LENGTH)


class MaxTextConfig(SimpleNamespace):
    """What the pipeline asks MaxText's configuration for; the rest is off."""

    grain_file_type = "arrayrecord"
    max_target_length = LENGTH
    global_batch_size_to_load = 4
    tokenizer_path = tokenizer_type = hf_access_token = max_segments_per_seq = None
    add_bos = add_eos = elastic_enabled = grain_use_elastic_iterator = False
    colocated_python_data_input = False
    expansion_factor_real_data = -1.0


def test_a_record_is_what_maxtexts_protobuf_writes(dataset: Contents, exported: Exported) -> None:
    paths = sorted(map(str, exported("array_record", "--split=test").glob("test-*")))
    source = ArrayRecordDataSource(paths)
    documents = dataset.documents["test"]
    assert len(source) == len(documents)
    for number, document in enumerate(documents):
        example = example_pb2.Example()
        example.features.feature["text"].int64_list.value.extend(document.tolist())
        assert source[number] == example.SerializeToString()
