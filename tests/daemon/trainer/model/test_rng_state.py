"""The generators of a rank on a GPU that is simulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch


def test_the_generator_of_a_gpu_is_saved_and_restored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch

    from zerotoolsd.trainer.model.rng_state import capture_rng, restore_rng

    state, given = torch.arange(16, dtype=torch.uint8), list[Any]()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", given.append)
    path = tmp_path / "rng.json"
    path.write_text(capture_rng())
    numbers = torch.rand(3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    restore_rng(path)  # on a machine without a GPU the others are restored
    assert given == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    restore_rng(path)
    assert torch.equal(given[0], state)
    assert torch.equal(torch.rand(3), numbers)


def test_without_a_gpu_there_is_no_state_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from zerotoolsd.trainer.model.rng_state import capture_rng

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert json.loads(capture_rng())["cuda"] is None
