"""Quantised weights that are found, and those of which nothing may be made."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops.quantised.models import (
    BNB,
    FP8,
    STATE,
    fp8,
    fp8_tensors,
    nf4_tensors,
    plain,
    read,
    scales,
    write,
)
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.numeric.dtype_casts import Array
from zerotools.ops.quantised.find_quantised import find_quantised

Tensors = dict[str, Array]
E4M3 = ml_dtypes.float8_e4m3fn
CT: dict[str, Any] = {"quant_method": "compressed-tensors", "format": "float-quantized"}


def _without(tensors: Tensors, *names: str) -> Tensors:
    return {name: array for name, array in tensors.items() if name not in names}


def _nf4(**said: Any) -> Tensors:
    return nf4_tensors({**STATE, **said})


NESTED = {"nested_blocksize": 256, "nested_offset": 0.5}
FAULTS: dict[str, tuple[Tensors, dict[str, Any] | None, str]] = {
    "no scales": (
        _without(fp8_tensors(), "a.weight_scale_inv"),
        FP8,
        "a.weight is float8_e4m3fn and has no scales that zerotools knows",
    ),
    "no scales and no config": ({"a.weight": fp8(4, 4)}, None, "has no scales"),
    "scales of another shape": (
        fp8_tensors() | {"a.weight_scale_inv": scales(1, 2)},
        FP8,
        r"a.weight_scale_inv has shape \[1, 2\], but a.weight of shape \[130, 256\] needs \[2, 2\]",
    ),
    "scales of another rank": (
        fp8_tensors() | {"a.weight_scale_inv": scales(2, 2, 2)},
        FP8,
        r"has shape \[2, 2, 2\]",
    ),
    "scales of another type": (
        fp8_tensors() | {"a.weight_scale_inv": np.ones((2, 2), np.int64)},
        FP8,
        "is int64: scales are floats",
    ),
    "scales of a plain weight": (
        fp8_tensors() | {"a.weight": plain(130, 256)},
        FP8,
        "holds scales of a.weight, which is bfloat16",
    ),
    "scales of nothing": (_without(fp8_tensors(), "a.weight"), FP8, "a.weight.* is missing"),
    "a config of fp8 and plain weights": (
        {"a.weight": plain(4, 4)},
        FP8,
        "has quant_method 'fp8', but no tensor next to it is quantised",
    ),
    "a config of mxfp4 and fp8 blocks": (
        {"a.weight": fp8(4, 6), "a.weight_scale_inv": scales(4, 1)},
        {"quant_method": "mxfp4"},
        "has quant_method 'mxfp4', but a.weight is fp8 with one scale for each row",
    ),
    "zero points": (
        {"a.weight": np.ones((4, 4), np.int8), "a.weight_scale": scales(4, 1),
         "a.weight_zero_point": np.ones((4, 1), np.int8)},
        CT,
        "has zero points",
    ),
    "integers without scales": ({"a.weight": np.ones((4, 4), np.int8)}, None, "has no scales"),
    "words of GPTQ without a config": (
        {"a.qweight": np.ones((4, 4), np.int32)},
        None,
        "a.qweight is int32 and has no scales",
    ),
    "experts without scales": (
        {"experts.up_blocks": np.ones((1, 2, 1, 16), np.uint8)},
        {"quant_method": "mxfp4"},
        "experts.up_scales is missing",
    ),
    "experts with scales of another shape": (
        {"experts.up_blocks": np.ones((1, 2, 1, 16), np.uint8),
         "experts.up_scales": np.ones((1, 2, 2), np.uint8)},
        {"quant_method": "mxfp4"},
        r"has shape \[1, 2, 2\], and experts.up_blocks has shape \[1, 2, 1, 16\]",
    ),
    "packed fours without a global scale": (
        {"a.weight_packed": np.ones((4, 8), np.uint8),
         "a.weight_scale": np.ones((4, 1), E4M3)},
        CT,
        "has no global scale: a.weight_global_scale is missing",
    ),
    "packed fours with scales of another shape": (
        {"a.weight_packed": np.ones((4, 16), np.uint8),
         "a.weight_scale": np.ones((4, 1), E4M3),
         "a.weight_global_scale": np.ones(1, np.float32)},
        CT,
        r"has shape \[4, 1\].* needs \[4, 2\] in groups of 16",
    ),
    "two of one weight": (
        {"a.weight_packed": np.ones((4, 16), np.uint8), "a.weight_scale": np.ones((4, 1), np.uint8),
         "a.weight": plain(4, 32)},
        CT,
        "but both exist",
    ),
    "nf4 in another type": (
        nf4_tensors(STATE) | {"a.weight": plain(64, 1)}, BNB, "is bfloat16, but zerotools",
    ),
    "nf4 without absmax": (
        _without(nf4_tensors(STATE), "a.weight.absmax"), BNB, "a.weight.absmax is missing",
    ),
    "nf4 with absmax of another shape": (
        nf4_tensors(STATE) | {"a.weight.absmax": scales(3)},
        BNB,
        r"of shape \[3\], but a.weight needs float32 of shape \[4\]",
    ),
    "nf4 whose absmax needs another": (
        nf4_tensors({**STATE, **NESTED}) | {"a.weight.nested_absmax": scales(1)},
        BNB,
        "needs uint8 of shape",
    ),
    "nf4 with a state that is no JSON": (nf4_tensors(b"{nope"), BNB, "is not valid JSON"),
    "nf4 with a state that is no table": (nf4_tensors([1]), BNB, "not a table"),
    "nf4 with deep JSON": (nf4_tensors(b"[" * 4000), BNB, "is not valid JSON"),
    "nf4 with a large state": (nf4_tensors(b" " * 5000), BNB, "at most 4096 bytes"),
    "nf4 with a huge shape": (_nf4(shape=[2**40, 2**40]), BNB, "has"),
    "nf4 with a shape of another size": (
        _nf4(shape=[2**40, 16]), BNB, r"which needs \[8796093022208, 1\]",
    ),
    "nf4 with a negative shape": (_nf4(shape=[-16, -16]), BNB, "has"),
    "nf4 with a shape of text": (_nf4(shape="16x16"), BNB, "has"),
    "nf4 with many dimensions": (_nf4(shape=[1] * 99), BNB, "has"),
    "nf4 with a block of 0": (_nf4(blocksize=0), BNB, "has the blocksize 0"),
    "nf4 with a block of text": (_nf4(blocksize="64"), BNB, "has the blocksize"),
    "nf4 with a huge block": (_nf4(blocksize=2**40), BNB, "has the blocksize"),
    "nf4 with an endless offset": (_nf4(nested_offset=float("inf")), BNB, "nested_offset"),
    "nf4 with a long offset": (_nf4(nested_offset=10**400), BNB, "nested_offset|not JSON"),
    "int8 in another order": (
        {"a.weight": np.ones((4, 4), np.int8), "a.SCB": scales(4),
         "a.weight_format": np.array(2, np.uint8)},
        BNB,
        "has its rows in another order",
    ),
    "int8 with scales of another shape": (
        {"a.weight": np.ones((4, 4), np.int8), "a.SCB": scales(3)}, BNB, r"of shape \[3\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tensors", "settings", "said"), FAULTS.values(), ids=FAULTS)
def test_what_is_wrong_is_said(
    tmp_path: Path, tensors: Tensors, settings: dict[str, Any] | None, said: str
) -> None:
    found = find_quantised(read(tmp_path / "m", tensors, settings))
    error = found.error()
    assert isinstance(error, BadFile)
    with pytest.raises(BadFile, match=said):
        raise error


UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"quant_method": "gptq", "bits": 4}, "'gptq', which zerotools does not"),
    "a method that is no text": ({"quant_method": ["fp8"]}, "names no quant_method"),
    "no method": ({"bits": 4}, "names no quant_method"),
    "another format": (
        {**CT, "format": "pack-quantized"}, "the format 'pack-quantized' of compressed-tensors",
    ),
    "rotated weights": ({**CT, "transform_config": {"config_groups": {}}}, "rotated weights"),
    "another algorithm": ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "'W4A8'"),
    "experts of 4 bits": ({**FP8, "expert_dtype": "fp4"}, "expert_dtype fp4"),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "said"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_method_is_named(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    error = find_quantised(read(tmp_path / "m", fp8_tensors(), settings)).error()
    assert isinstance(error, Unsupported)
    with pytest.raises(Unsupported, match=said):
        raise error


@pytest.mark.parametrize("settings", [FP8, {"quant_method": "fp8"}])
def test_blocks_are_those_of_the_config_or_of_its_class(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    found = find_quantised(read(tmp_path / "m", fp8_tensors(), settings))
    assert found.error() is None
    assert found.kinds() == {"fp8 blocks 128x128": (1, 1)}
    assert found.words() == "fp8 blocks 128x128, 1 tensor, with 1 tensor of scales"
    weight = found.weights[Key("a.weight", "param")]
    assert weight.tensor.shape == (130, 256)


OPEN: dict[str, tuple[Tensors, dict[str, Any] | None, str]] = {
    "no config": (
        fp8_tensors(), None, "blocks of 65x128 and blocks of 129x255, and nothing shows",
    ),
    "a config without blocks": (
        fp8_tensors(), {**CT, "config_groups": {}}, "nothing shows which",
    ),
    "exponents that are for no 32 elements": (
        {"a.weight": fp8(256, 256), "a.weight_scale_inv": np.ones((2, 2), np.uint8)},
        None,
        "blocks of 128x128 and blocks of 255x255",
    ),
    "a config of two blocks that both fit": (
        fp8_tensors(),
        {**CT, "config_groups": {
            name: {"weights": {"block_structure": block}}
            for name, block in (("a", [128, 128]), ("b", [96, 128]))
        }},
        "blocks of 128x128 and blocks of 96x128, and config.json names both",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tensors", "settings", "said"), OPEN.values(), ids=OPEN)
def test_blocks_that_nothing_proves_are_not_guessed(
    tmp_path: Path, tensors: Tensors, settings: dict[str, Any] | None, said: str
) -> None:
    model = write(tmp_path / "m", tensors, settings)
    if settings is None:
        (model / "config.json").unlink()
    found = find_quantised(formats.read(model))
    error = found.error()
    assert not found.weights
    assert found.damage == ()
    assert isinstance(error, Unsupported)
    with pytest.raises(Unsupported, match=said):
        raise error


def test_exponents_without_a_config_are_for_32_elements_of_a_row(tmp_path: Path) -> None:
    tensors = {"a.weight": fp8(4, 70), "a.weight_scale": np.ones((4, 3), np.uint8)}
    assert find_quantised(read(tmp_path / "m", tensors, None)).kinds() == {
        "mxfp8 groups of 32": (1, 1)
    }


def test_one_scale_for_a_tensor_and_scales_of_activations(tmp_path: Path) -> None:
    tensors = {
        "a.weight": fp8(4, 6),
        "a.weight_scale_inv": np.array(0.5, np.float32),
        "a.activation_scale": np.array(0.5, np.float32),
    }
    found = find_quantised(read(tmp_path / "m", tensors, {"quant_method": "fp8"}))
    assert found.kinds() == {"fp8 with one scale for each tensor": (1, 1)}
    assert found.activations == (Key("a.activation_scale", "param"),)


def test_a_plain_model_is_not_quantised(tmp_path: Path) -> None:
    tensors = {
        "a.weight": plain(4, 4),
        "mask": np.ones(4, np.uint8),
        "q.input_scale": plain(1),
        "h.layer_scale": plain(1),
    }
    assert not find_quantised(read(tmp_path / "m", tensors, None)).is_there


def test_a_config_is_found_beside_a_file_and_above_a_directory(tmp_path: Path) -> None:
    tensors = {"a.weight": fp8(100, 100), "a.weight_scale_inv": scales(2, 2)}
    model = write(tmp_path / "m", tensors, {**FP8, "weight_block_size": [64, 64]})
    step = tmp_path / "m/checkpoint-5"
    step.mkdir()
    shutil.copy(model / "model.safetensors", step)
    for path in (model, model / "model.safetensors", step, step / "model.safetensors"):
        found = find_quantised(formats.read(path))
        assert found.error() is None
        assert found.weights[Key("a.weight", "param")].kind == "fp8 blocks 64x64"
