"""The copy of a rank's state on the host, from a GPU that is simulated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("locks", [True, False])
def test_what_comes_from_a_gpu_goes_to_locked_memory_where_there_is_some(locks: bool) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from zerotoolsd.trainer.allocate_tensors import LockFailed
    from zerotoolsd.trainer.engine_torch.save_shards import HostCopy

    asked = list[Any]()

    def empty(shape: Any, dtype: Any) -> Any:
        asked.append((tuple(shape), dtype))
        if not locks:
            raise LockFailed(2)
        return torch.full(shape, 7, dtype=dtype)

    arena: Any = SimpleNamespace(empty=empty)
    with FakeTensorMode():
        weight = torch.empty(4, 2, dtype=torch.bfloat16, device="cuda")
    buffer = HostCopy(arena)._buffer_for(weight)
    assert asked == [((4, 2), torch.bfloat16)]
    assert (buffer.shape, buffer.dtype, buffer.device.type) == (weight.shape, weight.dtype, "cpu")
    assert not locks or bool((buffer == 7).all())


def test_the_copy_is_complete_before_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from zerotoolsd.trainer.engine_torch.save_shards import HostCopy

    done = list[str]()
    stream = SimpleNamespace(synchronize=lambda: done.append("synchronized"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    weight = torch.arange(3.0)
    copied = HostCopy().copy({"model": {"weight": weight}})["model"]["weight"]
    assert done == ["synchronized"]
    weight.zero_()
    assert copied.tolist() == [0.0, 1.0, 2.0]
