"""The gradients that a rank keeps, and how far they are from others."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from harness.gpu.training import gradients_apart
from harness.gpu.watched_rank import ended_by, kept, own_bytes, watched

pytestmark = pytest.mark.torch


def test_gradients_of_the_first_step_are_kept_as_the_optimizer_gets_them(tmp_path: Path) -> None:
    import torch

    class Path_:
        def __init__(self) -> None:
            self.weights = {"a": torch.nn.Parameter(torch.zeros(2)), "b": torch.zeros(1)}

        def fetch(self, names: Any, factor: float) -> None:
            self.weights["a"].grad = torch.full((2,), factor)

    class Optimizer:
        def step(self, path: Path_, *, norm: float) -> None:
            path.fetch(iter(["a", "b"]), norm)

    found = dict[str, Any]()
    watched(Path_, found)
    ended_by(Optimizer, tmp_path, found)
    assert (kept(tmp_path), own_bytes(tmp_path)) == ({}, 0)
    for norm in (3.0, 4.0):
        Optimizer().step(Path_(), norm=norm)
    assert {name: gradient.tolist() for name, gradient in kept(tmp_path).items()} == {"a": [3, 3]}
    assert own_bytes(tmp_path) > 1 << 20


def test_a_gradient_that_is_missing_zero_or_no_number_is_infinitely_apart() -> None:
    import torch

    wanted = {name: torch.tensor([4.0, -2.0]) for name in "abcdef"} | {"g": torch.zeros(2)}
    found = {
        "a": torch.tensor([4.0, -2.0]),
        "b": torch.tensor([4.0, -1.0]),
        "c": torch.zeros(2),
        "d": torch.tensor([math.nan, -2.0]),
        "e": torch.zeros(3),
        "g": torch.zeros(2),
    }
    apart = gradients_apart(wanted, found)
    assert apart == {
        "a": 0,
        "b": pytest.approx(1 / 20**0.5),  # of the norm
        **dict.fromkeys("cdef", math.inf),
        "g": 0,
    }


def test_one_element_may_be_five_times_as_far_apart_as_the_whole() -> None:
    import torch

    wanted, found = torch.ones(10_000), torch.ones(10_000)
    found[17] = 1.5
    assert gradients_apart({"a": wanted}, {"a": found}) == {"a": pytest.approx(0.1)}
