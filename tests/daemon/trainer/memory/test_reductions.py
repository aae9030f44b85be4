"""Buffers of reduced gradients, which are freed once they are copied."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zerotools.core.training_memory import MemoryLayout

pytestmark = pytest.mark.torch


class Buffer:
    """A buffer on a GPU, which notes what is done with its memory."""

    is_cuda, device = True, "cuda:0"

    def __init__(self) -> None:
        self.done: list[Any] = []

    def record_stream(self, stream: Any) -> None:
        self.done.append(stream)

    def untyped_storage(self) -> Any:
        return SimpleNamespace(resize_=self.done.append)


def test_the_buffer_before_is_freed_once_its_stream_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from zerotoolsd.trainer.memory.reductions import _Reduced

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    hook: Any = _Reduced()
    first, second = Buffer(), Buffer()
    hook(first)
    assert first.done == []
    hook(second)
    assert first.done == ["stream of cuda:0", 0]
    del second
    hook(Buffer())  # the one before is gone already


@pytest.mark.parametrize(("device", "frees"), [("cuda", True), ("cpu", False)])
def test_parameters_on_the_host_leave_their_buffers_on_a_gpu_alone(
    device: str, frees: bool
) -> None:
    import torch
    from torch.distributed.fsdp import FSDPModule

    from zerotoolsd.trainer.memory import reductions

    class Block(FSDPModule):  # type: ignore[misc]
        hook: Any = None

        def set_all_reduce_hook(self, hook: Any) -> None:
            self.hook = hook

    block = object.__new__(Block)
    layout: Any = SimpleNamespace(replicates_weights=True, has_masters=False, params_tier="host")
    assert {*vars(layout)} <= {*dir(MemoryLayout), *MemoryLayout.__dataclass_fields__}
    model = SimpleNamespace(modules=lambda: [block])
    reductions.free_reduction_buffers(model, layout, torch.device(device))
    assert (block.hook is not None) is frees
