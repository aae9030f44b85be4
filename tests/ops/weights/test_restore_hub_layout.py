"""The Hub's tensors out of a job's, whatever chunks those are in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.core.test_hub_layout import LAYOUTS, filled, hub_tensors
from tests.runs.records import a_record
from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.hub_layout import HubBlock, whole_tensor_block
from zerotools.formats.dcp.kept_for_writer import DcpNative
from zerotools.ops.conversions import consolidate
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.weights.restore_hub_layout import hub_layout_of, keys_on_hub, restore_hub_layout
from zerotools.runs.manifest import write_manifest
from zerotools.runs.training_record import write_record


def written(root: Path, arrays: dict[str, np.ndarray], cut: int = 1, dim: int = 0) -> Checkpoint:
    """A job's checkpoint of arrays, each cut into `cut` blocks along `dim`."""
    root.mkdir()
    data, tensors = b"", {}
    for name, array in arrays.items():
        along = dim if array.ndim > dim else 0
        parts = np.array_split(array, cut, along) if array.ndim else [array]
        chunks, first = [], 0
        for part in parts:
            start = [0] * array.ndim
            if array.ndim:
                start[along], first = first, first + part.shape[along]
            chunks.append(Chunk(Box(tuple(start), part.shape), "data", len(data)))
            data += part.astype("f4").tobytes()
        tensors[Key(name, "param")] = Tensor(dtypes.FLOAT32, array.shape, tuple(chunks))
    (root / "data").write_bytes(data)
    return Checkpoint(root, tensors, Origin("dcp", root), files={"data": len(data)})


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_element_is_where_the_hub_has_it(
    tmp_path: Path, name: str, cut: int, dim: int
) -> None:
    shape, blocks = LAYOUTS[name]
    wanted = hub_tensors(blocks)
    source = written(tmp_path / "source", {"w": filled(shape, blocks, wanted)}, cut, dim)
    found = restore_hub_layout(source, {"w": tuple(blocks)})
    assert {key.name: tensor.shape for key, tensor in found.tensors.items()} == {
        name: array.shape for name, array in wanted.items()
    }
    arrays = load_tensors(found, dict.fromkeys(found.tensors, dtypes.FLOAT32))
    for key, array in arrays.items():
        assert np.array_equal(array, wanted[key.name]), key


def test_one_tensor_of_several(tmp_path: Path) -> None:
    """The Hub has joined what the model has apart."""
    whole = np.arange(24).reshape(6, 4)
    source = written(tmp_path / "source", {"q": whole[:2], "k": whole[2:], "n": whole[0]})
    layout = {
        "q": (HubBlock("qk", (6, 4), Box.whole((2, 4))),),
        "k": (HubBlock("qk", (6, 4), Box.whole((4, 4)), offset=8),),
    }
    found = restore_hub_layout(source, layout)
    assert [key.name for key in found.tensors] == ["qk", "n"]
    arrays = load_tensors(found, dict.fromkeys(found.tensors, dtypes.FLOAT32))
    assert np.array_equal(arrays[Key("qk", "param")], whole)


def test_tied_names_follow_theirs(tmp_path: Path) -> None:
    source = written(tmp_path / "source", {"model.e": np.ones((2, 3)), "t": np.ones((2, 3))})
    source = Checkpoint(
        source.root, source.tensors, source.origin, aliases={"head": "model.e", "u": "t"}
    )
    layout = {
        "model.e": (whole_tensor_block("e", (2, 3)),),
        "head": (whole_tensor_block("out", (2, 3)),),
        "t": (
            HubBlock("t.0", (3,), Box((0, 0), (1, 3))),
            HubBlock("t.1", (3,), Box((1, 0), (1, 3))),
        ),
        "u": (
            HubBlock("u.0", (3,), Box((0, 0), (1, 3))),
            HubBlock("u.1", (3,), Box((1, 0), (1, 3))),
        ),
    }
    found = restore_hub_layout(source, layout)
    assert found.aliases == {"out": "e"}
    assert sorted(key.name for key in found.tensors) == ["e", "t.0", "t.1", "u.0", "u.1"]


def test_the_record_of_the_job_decides(tmp_path: Path) -> None:
    source = written(tmp_path / "source", {"w": np.ones((2, 3))})
    assert hub_layout_of(source) == {}
    assert restore_hub_layout(source, {}) is source
    layout = {"w": (whole_tensor_block("v", (2, 3)),)}
    recorded = Checkpoint(
        source.root, source.tensors, source.origin, native=DcpNative(job=a_record(hub=layout))
    )
    assert hub_layout_of(recorded) == layout
    assert keys_on_hub(recorded, layout) == {Key("w", "param"): (Key("v", "param"),)}


def with_type(checkpoint: Checkpoint, name: str, dtype: DType) -> Checkpoint:
    old = checkpoint.tensors[Key(name, "param")]
    tensors = {**checkpoint.tensors, Key(name, "param"): Tensor(dtype, old.shape, old.chunks)}
    return Checkpoint(checkpoint.root, tensors, checkpoint.origin)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path / "source", {"a": np.ones((2, 3)), "b": np.ones((2, 3))})
    with pytest.raises(BadFile, match=r"a has shape \[2, 3\], but the record of the job has"):
        restore_hub_layout(source, {"a": (whole_tensor_block("v", (3, 3)),)})
    joined = {
        "a": (HubBlock("ab", (4, 3), Box.whole((2, 3))),),
        "b": (HubBlock("ab", (4, 3), Box.whole((2, 3)), offset=6),),
    }
    with pytest.raises(Unsupported, match=r"a is float32, but b is float16; .* parts of ab"):
        restore_hub_layout(with_type(source, "b", dtypes.FLOAT16), joined)
    with pytest.raises(BadFile, match=r"has ab with shape \[4, 3\] and also with shape \[2, 3\]"):
        restore_hub_layout(source, {**joined, "b": (whole_tensor_block("ab", (2, 3)),)})


@pytest.mark.parametrize("alone", [True, False])
def test_weights_alone_of_a_job_have_its_record(tmp_path: Path, alone: bool) -> None:
    """DeepSpeed with state on NVMe leaves them as safetensors; a record beside others says nothing
    of them."""
    directory = tmp_path / "step-00000002"
    directory.mkdir()
    save_file({"w": np.ones((2, 3), "f4")}, directory / "model.safetensors")
    layout = {"w": (whole_tensor_block("v", (2, 3)),)}
    write_record(directory, a_record(hub=layout, weights_only=alone))
    write_manifest(directory)
    done = consolidate.prepare_export(
        directory, tmp_path / "out", consolidate.Options(dtype="fp32")
    )
    assert [key.name for key in done.target.checkpoint.tensors] == ["v" if alone else "w"]
