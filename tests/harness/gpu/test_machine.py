"""Readings under load, with processes and a driver that stand in for those of a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from harness.gpu.checks import Found
from harness.gpu.machine import CONTEXTS, MIB, slowest_of, under_load

PINS = "print(8 << 20, flush=True); input(); print('pinned', flush=True); input()"


def loaded(program: str, used: int, probe: Any = None) -> Found:
    found = iter([100 * MIB, (100 + CONTEXTS * used) * MIB])
    return under_load(probe or FakeProbe([fake_gpu(0)]), program, 1, lambda: next(found))


def test_contexts_are_counted_without_what_torch_has_reserved() -> None:
    found = loaded(PINS, 688)
    assert found.ok
    assert "a context holds 680 MiB of 680 predicted" in found.words
    assert not loaded(PINS, 528).ok
    assert not loaded(PINS, 840).ok


def test_a_process_that_cannot_pin_and_one_without_a_context_are_failures() -> None:
    with pytest.raises(AssertionError, match="a process ended"):
        loaded("print(0); input()", 680)
    with pytest.raises(AssertionError, match="a process ended"):
        loaded("raise SystemExit(1)", 680)


def test_a_driver_that_fails_or_is_slow_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = SimpleNamespace(error="GPU is lost", gpus=())
    probe = SimpleNamespace(read=lambda: lost)
    found = loaded(PINS, 688, probe)
    assert not found.ok
    assert found.words.endswith("GPU is lost")
    clock = iter(range(0, 100, 3))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    assert slowest_of(2, lambda: None) == (3.0, None)
