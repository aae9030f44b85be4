"""Tensors that note what is done to them say what becomes of real ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.torch

SHAPES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "stacked": (lambda t, *each: t.stack(each), ((3, 4), (3, 4))),
    "stacked and joined": (
        lambda t, a, b, c, d: t.cat([t.stack([a, b]), t.stack([c, d])], dim=1),
        ((3, 4), (3, 4), (2, 4), (2, 4)),
    ),
    "cut": (lambda t, a: [part.contiguous() for part in t.chunk(a, 3)], ((9, 4),)),
    "cut unevenly": (lambda t, a: t.split(a, [2, 3, 4], dim=-2), ((9, 4),)),
    "taken apart": (lambda t, a: t.unbind(a, dim=1), ((3, 4),)),
    "transposed": (lambda t, a: a.transpose(0, 1).contiguous(), ((3, 4),)),
    "transposed stacks": (lambda t, a, b: t.stack([a, b]).transpose(1, 2), ((3, 4), (3, 4))),
    "squeezed": (lambda t, a: a.squeeze(1).unsqueeze(-1).squeeze(), ((3, 1, 4),)),
    "one dimension more": (lambda t, a: a.reshape(3, 2, 2), ((3, 4),)),
    "one dimension less": (lambda t, a: a.reshape(a.shape[0], -1), ((3, 2, 4, 1),)),
    "interleaved": (lambda t, a: a.reshape(4, 2, 3).transpose(0, 1).reshape(8, 3), ((8, 3),)),
    "rotary halves": (
        lambda t, a: a.view(2, 6, 2, 5).transpose(1, 2).reshape(24, 5),
        ((24, 5),),
    ),
    "of no dimension": (lambda t, a: a.contiguous(), ((),)),
}


def check(move: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> None:
    import torch

    from zerotoolsd.trainer.model.trace_weight_conversion import blocks_of, symbolic_tensor

    sources = {
        str(number): torch.arange(torch.Size(shape).numel()).reshape(shape) + 1000 * number
        for number, shape in enumerate(shapes)
    }
    wanted = move(torch, *sources.values())
    found = move(torch, *(symbolic_tensor(name, value.shape) for name, value in sources.items()))
    pairs = (
        [(wanted, found)] if isinstance(wanted, torch.Tensor) else zip(wanted, found, strict=True)
    )
    for tensor, its_trace in pairs:
        assert its_trace.shape == tensor.shape
        filled = torch.full(tensor.shape, -1)
        for block in blocks_of(its_trace):
            values = sources[block.name].as_strided(block.box.shape, block.steps, block.offset)
            place = tuple(slice(a, b) for a, b in zip(block.box.start, block.box.stop, strict=True))
            filled[place] = values
        assert torch.equal(filled, tensor)


@pytest.mark.parametrize("name", SHAPES)
def test_the_blocks_are_where_torch_puts_the_elements(name: str) -> None:
    check(*SHAPES[name])


@pytest.mark.parametrize("seed", range(40))
def test_any_moves_one_after_another(seed: int) -> None:
    def move(torch: Any, first: Any, second: Any) -> Any:
        draw = random.Random(seed)
        value = torch.cat([first, second], dim=draw.randrange(2))
        for _ in range(4):
            kind = draw.choice(["transpose", "reshape", "chunk", "narrow"])
            if kind == "transpose":
                value = value.transpose(draw.randrange(value.dim()), draw.randrange(value.dim()))
            elif kind == "reshape":
                value = value.reshape(factors(draw, value.numel()))
            elif kind == "chunk" and value.shape[0] > 1:
                value = torch.chunk(value, 2)[draw.randrange(2)]
            elif value.shape[0] > 1:
                value = value.narrow(0, 1, value.shape[0] - 1)
        return value

    check(move, ((4, 6), (4, 6)))


def factors(draw: random.Random, numel: int) -> list[int]:
    found = []
    while numel > 1 and len(found) < 3:
        found.append(draw.choice([n for n in range(1, numel + 1) if numel % n == 0]))
        numel //= found[-1]
    return [*found, numel]


def test_what_is_no_move_is_refused() -> None:
    import torch

    from zerotoolsd.trainer.model.trace_weight_conversion import NotAMove, symbolic_tensor

    for change in (lambda a: -a, lambda a: a + 1, lambda a: a[::2], torch.exp):
        with pytest.raises(NotAMove):
            change(symbolic_tensor("x", (4,)))
    with pytest.raises(ValueError, match="cannot be concatenated"):
        torch.stack([symbolic_tensor("x", (4,)), symbolic_tensor("y", (5,))])
