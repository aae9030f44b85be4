"""Weights with an adapter added, computed block by block while they are compared: W + scale · B·A
in fp32. Nothing is written, and no weight is held whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import BFLOAT16, FLOAT16, FLOAT32
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats import FORMATS, FormatTable, read_any
from zerotools.io.files.open_files import ThreadFiles
from zerotools.io.numeric.numpy_dtypes import Array, as_type, numpy_dtype
from zerotools.ops.comparison.blocks import Block, LocatedTensor
from zerotools.ops.execution.load_arrays import load
from zerotools.ops.weights.adapter_config import check_config, read_adapter_config, scale_of
from zerotools.ops.weights.adapter_names import (
    EMBEDDING_A,
    EMBEDDING_B,
    PREFIX,
    SAVED_WHOLE,
    A,
    AdapterTensor,
    B,
    adapter_tensors,
)

# The widest step between two numbers of a type, relative to them.
_STEP = {BFLOAT16: 2.0**-7, FLOAT16: 2.0**-10}
# Ways to begin that take something off the weight to which the product is added.
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_MULTIPLIED = {A: B, EMBEDDING_A: EMBEDDING_B}


@dataclass(frozen=True, slots=True)
class Product:
    """`scale` · `left` · `right` is added to a weight, both in fp32."""

    left: Array
    right: Array
    scale: float


class AdaptedTensor(LocatedTensor):
    """A matrix of a checkpoint with a product added, as a tensor of fp32. Its blocks are boxes, so
    that rows and columns are known."""

    def __init__(self, checkpoint: Checkpoint, key: Key, product: Product) -> None:
        """
        Raises:
            BadFile: it has a hole, an overlap, or a chunk outside its file.
        """
        super().__init__(checkpoint, key)
        self._stored = LocatedTensor(checkpoint, key)
        self._product = product
        self.dtype, self.ranges = FLOAT32, None

    def read(self, files: ThreadFiles, block: Block, raw: Array, buffer: Array) -> None:
        """As `LocatedTensor.read`, of the sum."""
        box, dtype = block.box, self._stored.dtype
        assert box is not None, "a tensor without ranges is read by boxes"
        stored = np.empty((block.end - block.begin) * dtype.itemsize, np.uint8)
        self._stored.read(files, block, stored, buffer)
        rows, columns = (
            slice(first, first + count) for first, count in zip(box.start, box.shape, strict=True)
        )
        added = self._product.left[rows] @ self._product.right[:, columns]
        values = as_type(stored.view(numpy_dtype(dtype)), FLOAT32).reshape(box.shape)
        total = values + np.float32(self._product.scale) * added
        raw.view(np.float32).reshape(box.shape)[...] = total


def with_adapter(
    base: Checkpoint, path: Path, table: FormatTable = FORMATS
) -> tuple[Checkpoint, dict[Key, Product]]:
    """The model `base` with the adapter in the directory `path`: what the adapter holds whole takes
    the place of the base's, and products are added to weights while these are read.

    Raises:
        BadRequest: it is no adapter, or not one of this model.
        BadFile: its files are damaged, or half of it is missing.
        Unsupported: it is of a kind whose sum is not computed here.
    """
    config = read_adapter_config(path)
    adapter = read_any(path, table=table)
    tensors = adapter_tensors(adapter.tensors, None, path)
    check_config(config, _lora(tensors), {e.saved: adapter.tensors[e.key] for e in tensors}, path)
    _refuse_others(config, tensors, path)
    products: dict[Key, Product] = {}
    for module, parts in _by_module(tensors).items():
        for down, up in _MULTIPLIED.items():
            if down in parts:
                key = _weight(base, module, path)
                product = _product(adapter, parts[down].key, parts[up].key, down, config, module)
                products[key] = _placed(product, base.tensors[key], config, key)
    whole = [key for key in adapter.tensors if key not in {each.key for each in tensors}]
    replaced, files = dict(base.tensors), dict(base.files)
    for key in whole:
        own = _weight(base, key.name.removeprefix(PREFIX), path, suffix="")
        replaced[own] = _elsewhere(adapter, key)
        files |= {str(adapter.root.absolute() / n): size for n, size in adapter.files.items()}
    stamps = {**base.stamps, **adapter.stamps}
    return replace(base, tensors=replaced, files=files, stamps=stamps), products


def _lora(tensors: list[AdapterTensor]) -> list[AdapterTensor]:
    return [each for each in tensors if each.part != SAVED_WHOLE]


def _by_module(tensors: list[AdapterTensor]) -> dict[str, dict[str, AdapterTensor]]:
    found: dict[str, dict[str, AdapterTensor]] = {}
    for each in tensors:
        found.setdefault(each.module, {})[each.part] = each
    return found


def _refuse_others(config: Mapping[str, Any], tensors: list[AdapterTensor], path: Path) -> None:
    began = config.get("init_lora_weights")
    if isinstance(began, str) and began.lower().startswith(_CHANGE_THE_BASE):
        raise Unsupported(
            f"{path} has init_lora_weights = {began!r:.40}, which changed the weights of the base "
            "model before it trained: they are not those of the base that is given; convert the "
            "adapter by save_pretrained(..., path_initial_model_for_weight_conversion=...) of PEFT"
        )
    known = {*_MULTIPLIED, *_MULTIPLIED.values()}
    odd = next((e for e in tensors if e.part not in known or e.saved.endswith(".bias")), None)
    if odd is not None or config.get("target_parameters"):
        what = "target_parameters" if odd is None else odd.saved
        raise Unsupported(
            f"{path} has {what}, and only a product of two matrices can be added to a weight here; "
            "merge it by merge_and_unload of PEFT and compare that"
        )


def _weight(base: Checkpoint, module: str, path: Path, suffix: str = ".weight") -> Key:
    for role in ("param", "buffer"):
        key = Key(f"{module}{suffix}", role)
        key = Key(base.aliases.get(key.name, key.name), role)
        if key in base.tensors:
            return key
    raise BadRequest(
        f"{base.origin.path} has no {module}{suffix}, to which {path} adds something: it is not "
        "the base model of this adapter"
    )


def _product(
    adapter: Checkpoint, down: Key, up: Key, part: str, config: Mapping[str, Any], module: str
) -> Product:
    halves = load(adapter, dict.fromkeys((down, up), FLOAT32))
    left, right, scale = halves[up], halves[down], scale_of(config, module)
    if left.ndim != 2 or right.ndim != 2:
        raise Unsupported(
            f"the adapter of {module} is of a convolution, which is not added to a weight here; "
            "merge it by merge_and_unload of PEFT and compare that"
        )
    return Product(right.T, left.T, scale) if part == EMBEDDING_A else Product(left, right, scale)


def _placed(product: Product, weight: Tensor, config: Mapping[str, Any], key: Key) -> Product:
    """The product as the layer keeps its weight: GPT-2's are transposed."""
    shape = product.left.shape[0], product.right.shape[1]
    if weight.shape == shape and not (config.get("fan_in_fan_out") and shape[0] == shape[1]):
        return product
    if weight.shape == shape[::-1]:
        return Product(product.right.T, product.left.T, product.scale)
    raise BadRequest(
        f"{key} has shape {list(weight.shape)}, and its adapter {list(shape)}: it is not the base "
        "model of this adapter"
    )


def _elsewhere(adapter: Checkpoint, key: Key) -> Tensor:
    """A tensor of the adapter, whose files are named from the root of the file system."""
    tensor, root = adapter.tensors[key], adapter.root.absolute()
    chunks = tuple(replace(chunk, file=str(root / chunk.file)) for chunk in tensor.chunks)
    return replace(tensor, chunks=chunks)


def tolerance_of_sums(merged: Checkpoint) -> str:
    """How far a merged model may be from base and adapter: a step of its narrowest type, in which
    the sum was rounded, and what the order of a sum in fp32 makes."""
    types = {t.dtype for key, t in merged.tensors.items() if key.role in ("param", "param16")}
    steps = [_STEP[dtype] for dtype in types if dtype in _STEP]
    return f"abs=1e-06,rel={max(steps, default=1e-5):g}"
