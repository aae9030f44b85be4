"""The thread that writes a checkpoint beside training, of a rank on a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("place", "chosen"), [("cuda:3", ["cuda:3"]), ("cpu", [])])
def test_the_thread_writes_on_the_device_of_its_rank(
    monkeypatch: pytest.MonkeyPatch, place: str, chosen: list[str]
) -> None:
    import torch

    from zerotoolsd.trainer.checkpointing import _in_thread

    done = list[str]()
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: done.append(str(device)))
    group: Any = SimpleNamespace(device=torch.device(place))
    _in_thread(lambda staging, group: done.append(f"writes {staging}"), Path("/s"), group)
    assert done == [*chosen, "writes /s"]
