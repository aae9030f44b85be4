from __future__ import annotations

import pytest

from harness.patience import VARIABLE, Deadline, factor, patient


def test_a_deadline_grows_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "3")
    assert patient(20) == 60
    deadline = Deadline(100.0)
    assert 299 < deadline.left <= 300
    monkeypatch.setenv(VARIABLE, "5")
    assert deadline.left > 499
    monkeypatch.setenv(VARIABLE, "1")  # a load that goes does not take back what was granted
    assert deadline.left > 499
    assert Deadline(0.0).has_passed()


def test_it_is_never_shorter_than_on_an_idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert factor() >= 1
