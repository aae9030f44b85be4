"""Clocks for the time of a step: of the wall, of the processor, and of what is outside of torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Outside:
    """Processor seconds of the process, without those in which its main thread is in a forward or
    backward pass, in the loss or in an optimizer's step.

    One thread computes. So what other threads of the process do counts, even during a pass.
    """

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._inside = 0.0
        self._depth = 0
        owners = (nn.Module, "__call__"), (torch.Tensor, "backward"), (torch.optim.AdamW, "step")
        for owner, name in (*owners, (functional, "cross_entropy")):
            setattr(owner, name, self._timed(getattr(owner, name)))

    def __call__(self) -> float:
        """Seconds since any moment."""
        return time.process_time() - self._inside

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            if self._depth:
                return function(*args, **options)
            self._depth, began = 1, time.thread_time()
            try:
                return function(*args, **options)
            finally:
                self._depth = 0
                self._inside += time.thread_time() - began

        return timed


LOOKS: dict[str, Callable[[], Callable[[], float]]] = {
    "wall": lambda: time.perf_counter,
    "processor": lambda: time.process_time,
    "outside": Outside,
}
"""By the name that a plan has, what makes them in a rank."""
