"""Cutting stacks and undoing flat pieces is geometry: compared with numpy on random shapes."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Chunk, Key, Tensor
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadFile
from zerotools.formats.megatron.unstack_tensors import (
    join_halves,
    reorder_gated_lora,
    unstack_tensors,
)
from zerotools.io.distcp.item_chunks import ItemChunks

STACK = Key("decoder.layers.mlp.experts.experts.linear_fc1.weight", "exp_avg")


class InMemory(ItemChunks):
    """Chunks that follow one another in a file called `memory`."""

    def __init__(self, boxes: list[Box]) -> None:
        self._boxes = boxes

    def __len__(self) -> int:
        return len(self._boxes)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        offset = 4 * sum(box.numel for box in self._boxes[:index])
        return Chunk(self._boxes[index], "memory", offset)

    def box(self, number: int) -> Box:
        return self._boxes[number]

    @property
    def boxes(self) -> list[Box]:
        return self._boxes


def _stored(array: np.ndarray, boxes: list[Box]) -> np.ndarray:
    parts = [array[tuple(map(slice, box.start, box.stop))].reshape(-1) for box in boxes]
    return np.concatenate(parts)


def _value(tensor: Tensor, memory: np.ndarray) -> np.ndarray:
    found = np.full(tensor.shape, np.nan, np.float32)
    for chunk in tensor.chunks:
        strides = chunk.strides or row_major_strides(chunk.box.shape)
        begin = memory[chunk.offset // 4 :]
        part = np.lib.stride_tricks.as_strided(
            begin, chunk.box.shape, [4 * step for step in strides]
        )
        target = tuple(map(slice, chunk.box.start, chunk.box.stop))
        assert np.isnan(found[target]).all(), "two chunks overlap"
        found[target] = part
    return found


def _cut(shape: tuple[int, ...], counts: tuple[int, ...]) -> list[Box]:
    sizes = [size // count for size, count in zip(shape, counts, strict=True)]
    return [
        Box(tuple(a * n for a, n in zip(at, sizes, strict=True)), tuple(sizes))
        for at in product(*map(range, counts))
    ]


@st.composite
def _grids(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape of layers, experts, rows and columns, and into how many pieces each is cut."""
    counts = tuple(draw(st.integers(1, 3)) for _ in range(4))
    return tuple(count * draw(st.integers(1, 3)) for count in counts), counts


@given(_grids())
def test_each_expert_of_each_layer_is_its_slice(
    grid: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    shape, counts = grid
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    boxes = _cut(shape, counts)
    tensor = Tensor(FLOAT32, shape, InMemory(boxes))
    found = unstack_tensors(Path("x"), {STACK: tensor}, {})
    assert len(found) == shape[0] * shape[1]
    for layer, expert in product(range(shape[0]), range(shape[1])):
        name = f"decoder.layers.{layer}.mlp.experts.local_experts.{expert}.linear_fc1.weight"
        value = _value(found[Key(name, "exp_avg")], _stored(array, boxes))
        np.testing.assert_array_equal(value, array[layer, expert])


@given(_grids(), st.data())
def test_flat_pieces_are_put_back(
    grid: tuple[tuple[int, ...], tuple[int, ...]], data: st.DataObject
) -> None:
    """As megatron-core 0.12 to 0.15 store a moment: a row of flattened elements for each rank, cut
    anywhere."""
    shape, counts = grid
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    local = _cut(shape, counts)
    length = local[0].numel
    rows = _stored(array, local).reshape(*counts, length)
    boxes = []
    for at in product(*map(range, counts)):
        cut = data.draw(st.integers(0, length))
        for begin, end in ((0, cut), (cut, length)):
            if begin < end:
                boxes.append(Box((*at, begin), (1, 1, 1, 1, end - begin)))
    tensor = Tensor(FLOAT32, rows.shape, InMemory(boxes))
    found = unstack_tensors(Path("x"), {STACK: tensor}, {STACK: shape})
    memory = _stored(rows, boxes)
    for layer, expert in product(range(shape[0]), range(shape[1])):
        name = f"decoder.layers.{layer}.mlp.experts.local_experts.{expert}.linear_fc1.weight"
        value = _value(found[Key(name, "exp_avg")], memory)
        np.testing.assert_array_equal(value, array[layer, expert])


def test_the_halves_of_a_gated_layer_are_joined() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    halves = {
        Key(f"decoder.layers.0.mlp.linear_fc1.weight{end}", "param"): Tensor(
            FLOAT32, (4, 6), InMemory([Box((0, 0), (4, 6))])
        )
        for end in ("_v", "_w")
    }
    (key, tensor), *others = join_halves(Path("x"), halves).items()
    assert (key.name, tensor.shape, others) == (
        "decoder.layers.0.mlp.linear_fc1.weight",
        (8, 6),
        [],
    )
    np.testing.assert_array_equal(_value(tensor, array.reshape(-1)), np.tile(array, (2, 1)))


@pytest.mark.parametrize(
    ("stored", "shape", "said"),
    [
        ((2, 1, 8), (3, 8), "; copy or download it again"),
        ((2, 8), (4, 4), "; copy or download it again"),
        ((0, 1, 8), (0, 8), "; copy or download it again"),
        ((2**40, 4), (2**40, 4), "more layers than any model has"),
    ],
)
def test_shapes_that_contradict_each_other_are_refused(
    stored: tuple[int, ...], shape: tuple[int, ...], said: str
) -> None:
    key = Key("decoder.layers.mlp.linear_fc2.weight", "param")
    tensor = Tensor(FLOAT32, stored, InMemory([]))
    with pytest.raises(BadFile, match=said):
        unstack_tensors(Path("x"), {key: tensor}, {key: shape})


@pytest.mark.parametrize(("ranks", "said"), [(1, None), (2, None), (3, 3), (2, 4)])
def test_halves_of_an_adapter_that_ranks_have_in_turns_are_put_into_order(
    ranks: int, said: int | None
) -> None:
    key = Key("decoder.layers.0.mlp.linear_fc1.lora_B.default.weight", "param")
    array = np.arange(24 * 2, dtype=np.float32).reshape(24, 2)
    boxes = _cut((24, 2), (ranks, 1))
    tensor = Tensor(FLOAT32, (24, 2), InMemory(boxes))
    found, moved = reorder_gated_lora({key: tensor}, said)
    if ranks == 1 or said not in (None, ranks):
        assert (found, moved) == ({key: tensor}, [])
        return
    own = np.split(array, 2 * ranks)
    wanted = np.concatenate(own[::2] + own[1::2])
    assert moved == [key]
    np.testing.assert_array_equal(_value(found[key], _stored(array, boxes)), wanted)
