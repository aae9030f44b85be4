"""Layers and experts out of stacked tensors, wherever their chunks lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadRequest
from zerotools.formats.megatron.writing.one_tensor_per_layer import norm_names, single_tensors
from zerotools.ops.execution.load_arrays import load_tensors

STACKED = "decoder.layers.mlp.experts.experts.linear_fc2.weight"


def stored(
    root: Path, shape: tuple[int, ...], chunks: list[Chunk], values: np.ndarray
) -> Checkpoint:
    (root / "data").write_bytes(values.tobytes())
    tensors = {Key(STACKED, "param"): Tensor(FLOAT32, shape, chunks)}
    return Checkpoint(root, tensors, Origin("dcp", root), files={"data": values.nbytes})


@pytest.mark.parametrize("is_transposed", [False, True])
def test_each_expert_of_each_layer_is_a_tensor(is_transposed: bool, tmp_path: Path) -> None:
    shape = (2, 3, 4, 5)
    values = np.arange(120, dtype=np.float32).reshape(shape)
    if is_transposed:  # one chunk, the last dimensions exchanged in the file
        lying = np.ascontiguousarray(values.swapaxes(2, 3))
        chunks = [Chunk(Box.whole(shape), "data", 0, (60, 20, 1, 4))]
    else:  # a chunk of both layers for the first two experts, and one of each layer for the third
        lying = np.concatenate([values[:, :2].ravel(), values[:, 2:].ravel()])
        chunks = [
            Chunk(Box((0, 0, 0, 0), (2, 2, 4, 5)), "data", 0),
            Chunk(Box((0, 2, 0, 0), (1, 1, 4, 5)), "data", 320),
            Chunk(Box((1, 2, 0, 0), (1, 1, 4, 5)), "data", 400),
        ]
    source = stored(tmp_path, shape, chunks, lying)
    singles = single_tensors(source)
    made = Checkpoint(tmp_path, singles.tensors, source.origin, files=source.files)
    arrays = load_tensors(made, dict.fromkeys(singles.tensors, FLOAT32))
    assert len(arrays) == 6
    for layer in range(2):
        for expert in range(3):
            name = f"decoder.layers.{layer}.mlp.experts.local_experts.{expert}.linear_fc2.weight"
            assert np.array_equal(arrays[Key(name, "param")], values[layer, expert])
    assert singles.keys[Key(STACKED, "param")] == tuple(singles.tensors)


def test_a_stacked_tensor_has_axes_for_layers_and_experts(tmp_path: Path) -> None:
    source = stored(tmp_path, (2, 3), [], np.zeros(6, np.float32))
    with pytest.raises(BadRequest, match="needs 2 axes for layers or experts"):
        single_tensors(source)


def test_a_tensor_is_not_there_twice(tmp_path: Path) -> None:
    source = stored(tmp_path, (1, 1, 4), [], np.zeros(4, np.float32))
    name = "decoder.layers.0.mlp.experts.local_experts.0.linear_fc2.weight"
    twice = {**source.tensors, Key(name, "param"): Tensor(FLOAT32, (4,), ())}
    with pytest.raises(BadRequest, match="which another tensor already has"):
        single_tensors(Checkpoint(tmp_path, twice, source.origin))


L = "decoder.layers.3."
QKV, FC1 = f"{L}self_attention.linear_qkv.weight", f"{L}mlp.linear_fc1.weight"
UP = f"{L}self_attention.linear_kv_up_proj.weight"


@pytest.mark.parametrize(
    ("names", "written", "second"),
    [
        ({QKV}, {"input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight"}, {}),
        ({QKV}, {"input_layernorm.bias": "self_attention.linear_qkv.layer_norm_bias"}, {}),
        ({QKV, FC1}, {"pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight"}, {}),
        (
            {QKV},
            {"mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight"},
            {"pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight"},
        ),
        (
            {UP, FC1},
            {"pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight"},
            {"mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight"},
        ),
        (
            {UP},
            {
                "self_attention.kv_layernorm.weight": (
                    "self_attention.linear_kv_up_proj.layer_norm_weight"
                )
            },
            {
                "self_attention.linear_kv_up_proj.layer_norm_weight": (
                    "self_attention.kv_layernorm.weight"
                )
            },
        ),
        ({UP}, {}, {}),
    ],
)
def test_each_norm_has_the_name_of_its_layer(
    names: set[str], written: dict[str, str], second: dict[str, str]
) -> None:
    norms = {L + name for name in written}
    found = norm_names(names | norms)
    assert found.written == {L + old: L + new for old, new in written.items()}
    assert found.second == {L + name: L + other for name, other in second.items()}


def test_latent_attention_keeps_its_input_norm() -> None:
    assert norm_names({UP, f"{L}input_layernorm.weight"}).written == {}
