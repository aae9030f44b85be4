from __future__ import annotations

import pytest

from harness.patience import VARIABLE, Deadline, factor, patient


def test_a_deadline_grows_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "3000")  # no machine is so busy
    assert patient(20) == 60_000
    deadline = Deadline(100.0)
    assert 250_000 < deadline.left <= 300_000
    monkeypatch.setenv(VARIABLE, "5000")
    assert deadline.left > 450_000
    monkeypatch.setenv(VARIABLE, "1")  # a load that goes does not take back what was granted
    assert deadline.left > 450_000
    assert Deadline(0.0).has_passed()


def test_it_is_never_shorter_than_on_an_idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert factor() >= 1
