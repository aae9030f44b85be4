"""What we lay out is what the safetensors library writes and reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.formats.copying import write
from tests.formats.safetensors.files import write_file
from zerotools.core import dtypes
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats.safetensors.lay_out import lay_out as lay_out_safetensors
from zerotools.formats.safetensors.read import read as read_safetensors

GB = 10**9
KINDS = ("bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32",
         "float64", "int64", "uint64", "complex64")  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Checkpoint:
    """Two tensors of every type that numpy has, an empty one, a number, and a model's files."""
    root = tmp_path / "source"
    root.mkdir()
    tensors = {
        f"{name}.{kind}": np.arange(6).reshape(2, 3).astype(kind) + (name == "a")
        for kind in KINDS
        for name in "ba"
    }
    tensors = {name: data.astype(name.split(".")[1]) for name, data in tensors.items()}
    tensors |= {"empty": np.zeros((0, 3), "float32"), "nombre é": np.array(3.5)}
    save_file(tensors, root / "model.safetensors", {"format": "pt"})
    (root / "tokenizer.json").write_text("[]")
    return read_safetensors(root)


def test_the_file_is_the_librarys_own_byte_for_byte(tmp_path: Path, source: Checkpoint) -> None:
    out = write(source, lay_out_safetensors(source, tmp_path / "out", max_shard_bytes=GB))
    assert {path.name for path in out.glob("[!.]*")} == {"model.safetensors", "tokenizer.json"}
    wanted = (source.root / "model.safetensors").read_bytes()
    assert (out / "model.safetensors").read_bytes() == wanted


@pytest.mark.parametrize("most", [1, 24, 60, 200])
def test_shards_and_index(tmp_path: Path, source: Checkpoint, most: int) -> None:
    out = write(source, lay_out_safetensors(source, tmp_path / "out", max_shard_bytes=most))
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(out.glob("*.safetensors"))
    loaded: dict[str, Any] = {}
    for path in files:
        tensors = load_file(path)
        assert len(tensors) <= 1 or sum(data.nbytes for data in tensors.values()) <= most
        assert {index["weight_map"][name] for name in tensors} == {path.name}
        loaded |= tensors
    wanted = load_file(source.root / "model.safetensors")
    assert loaded.keys() == wanted.keys() == index["weight_map"].keys()
    assert all(loaded[name].tobytes() == data.tobytes() for name, data in wanted.items())
    assert index["metadata"]["total_size"] == sum(data.nbytes for data in wanted.values())
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    assert read_safetensors(out).tensors.keys() == source.tensors.keys()


def test_the_header_is_padded_so_that_data_is_aligned(tmp_path: Path) -> None:
    path = write_file(tmp_path / "x.safetensors", {"abc": b"12"})
    out = write(
        checkpoint := read_safetensors(path),
        lay_out_safetensors(checkpoint, tmp_path / "out", max_shard_bytes=GB),
    )
    length = int.from_bytes((out / "model.safetensors").read_bytes()[:8], "little")
    assert length % 8 == 0


def _with_config(source: Checkpoint, tmp_path: Path, config: object, dtype: str) -> Any:
    path = tmp_path / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    tensors = {
        Key("w", "param"): Tensor(dtypes.dtype_named(dtype), (4,), ()),
        Key("ids", "buffer"): Tensor(dtypes.INT64, (100,), ()),
        Key("scale", "buffer"): Tensor(dtypes.FLOAT32, (1,), ()),
    }
    changed = replace(source, tensors=tensors, model_sidecars={"config.json": path})
    target = lay_out_safetensors(changed, tmp_path / "out", max_shard_bytes=GB)
    plan = target.files["config.json"]
    return json.loads(plan.literals[0].data) if plan.literals else plan.carried[0].source


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"dtype": "float32"}, {"dtype": "bfloat16"}),
        ({"torch_dtype": None}, {"torch_dtype": "bfloat16"}),
        ({"a": 1}, {"a": 1, "torch_dtype": "bfloat16"}),
        (
            {"dtype": "x", "text_config": {"dtype": "x", "vocab": {"dtype": 7}}},
            {"dtype": "bfloat16", "text_config": {"dtype": "bfloat16", "vocab": {"dtype": 7}}},
        ),
    ],
)
def test_the_config_says_the_type_of_the_weights(
    tmp_path: Path, source: Checkpoint, config: object, wanted: object
) -> None:
    assert _with_config(source, tmp_path, config, "bfloat16") == wanted


def test_a_config_that_is_no_object_is_carried(tmp_path: Path, source: Checkpoint) -> None:
    assert _with_config(source, tmp_path, "{", "bfloat16") == tmp_path / "config.json"


def _tensors(**changes: Any) -> Callable[[Checkpoint], Checkpoint]:
    return lambda source: replace(source, **changes)


@pytest.mark.parametrize(
    ("change", "most", "error", "said"),
    [
        (_tensors(tensors={}), GB, BadRequest, "no weights"),
        (_tensors(), 0, BadRequest, "at least 1 byte"),
        (
            _tensors(tensors={Key("w", "exp_avg"): Tensor(dtypes.INT8, (1,), ())}),
            GB, BadRequest, "is not a weight",
        ),
        (
            _tensors(tensors={Key("w", "param"): Tensor(dtypes.COMPLEX128, (1,), ())}),
            GB, Unsupported, "complex128",
        ),
        (
            _tensors(tensors={Key("__metadata__", "param"): Tensor(dtypes.INT8, (1,), ())}),
            GB, BadRequest, "__metadata__",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_written(
    tmp_path: Path,
    source: Checkpoint,
    change: Callable[[Checkpoint], Checkpoint],
    most: int,
    error: type[Exception],
    said: str,
) -> None:
    with pytest.raises(error, match=said):
        lay_out_safetensors(change(source), tmp_path / "out", max_shard_bytes=most)
