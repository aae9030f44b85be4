"""How far the reading of the data is: to the supervisor each time, to the log now and then."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch


class Heard:
    """A notifier that keeps what it is told, and a heartbeat."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, str]] = []
        self.events: list[str] = []
        self.heartbeat_writer = self
        self.step = 0

    def enter(self, phase: str, doing: str) -> None:
        self.phases.append((phase, doing))

    def event(self, name: str, **fields: Any) -> None:
        assert name == "phase"
        self.events.append(fields["doing"])


def test_each_progress_is_a_phase_and_few_are_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from zerotoolsd.trainer.rank.rank_settings import Rank
    from zerotoolsd.trainer.reporting import reporter

    now = [0.0]
    monkeypatch.setattr(reporter.time, "monotonic", lambda: now[0])
    heard: Any = Heard()
    rank = Rank(0, 0, 1)
    told = reporter.Reporter(rank, heard, steps=None)
    for seconds in (0, 2, 29, 31):
        now[0] = float(seconds)
        told.reads(f"{seconds} of 40 MB")
    lines = [f"reading the data: {n} of 40 MB" for n in (0, 2, 29, 31)]
    assert heard.events == lines
    assert heard.phases == [("reading the data", line) for line in lines]
    assert capsys.readouterr().out.splitlines() == [lines[0], lines[3]]


def test_a_step_on_a_gpu_tells_the_most_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from zerotoolsd.trainer.engine.engine_interface import StepResult
    from zerotoolsd.trainer.rank.rank_settings import Rank
    from zerotoolsd.trainer.reporting import reporter

    told = dict[str, Any]()
    heartbeat = type("", (), {"beat": lambda self, step: None})()
    notifier: Any = type(
        "", (), {"heartbeat_writer": heartbeat, "event": lambda self, name, **f: told.update(f)}
    )
    one = reporter.Reporter(Rank(0, 0, 1), notifier(), steps=1)
    outcome = StepResult(2.0, 1.0, 1e-3, stop=False)
    for is_initialized, peak, said in ((True, 3 << 30, "gpu 3.00 GiB"), (False, None, "host")):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda is_on=is_initialized: is_on)
        monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 3 << 30)
        one.stepped(1, outcome, 100, 0.5)
        assert told["gpu_peak_bytes"] == peak
        assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("loss", "scale", "why"),
    [
        (2.0, 8.0, "gradients overflowed at loss scale 8 (3 skipped so far)"),
        (float("nan"), 8.0, "its loss is nan, its gradient norm inf (3 skipped so far)"),
        (2.0, None, "its loss is 2, its gradient norm inf (3 skipped so far)"),
    ],
)
def test_why_a_step_was_skipped(
    loss: float, scale: float | None, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from zerotoolsd.trainer.engine.engine_interface import StepResult
    from zerotoolsd.trainer.rank.rank_settings import Rank
    from zerotoolsd.trainer.reporting import reporter

    heartbeat = type("", (), {"beat": lambda self, step: None})()
    notifier: Any = type(
        "", (), {"heartbeat_writer": heartbeat, "event": lambda self, name, **f: None}
    )
    one = reporter.Reporter(Rank(0, 0, 1), notifier(), steps=9)
    outcome = StepResult(
        loss, float("inf"), 1e-3, stop=False, loss_scale=scale, is_skipped=True, skipped=3
    )
    one.stepped(4, outcome, 100, 0.5)
    assert f"step 4/9 skipped: {why}" in capsys.readouterr().out
