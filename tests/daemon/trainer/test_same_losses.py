"""The loss curve follows from the job, not from how it is spread over ranks.

Tolerance in fp32 on gloo: at most 2e-6 relative per loss over these steps, which is the order of
summation; the first step, before any update, within 3e-7.
"""

import json
from pathlib import Path

import pytest

from harness.launching import Attempt, job, run

pytestmark = pytest.mark.torch
REST, FIRST = 2e-6, 3e-7


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Attempt:
    """The reference: one rank, stage 3."""
    return run(tmp_path_factory.mktemp("alone"), job(text))


def test_the_loss_falls(alone: Attempt) -> None:
    losses = alone.losses()
    assert list(losses) == [1, 2, 3, 4]
    assert losses[4] < losses[1] - 0.5


def test_three_ranks_sharded(alone: Attempt, tmp_path: Path, text: Path) -> None:
    attempt = run(tmp_path, job(text, ranks=3))
    found, wanted = attempt.losses(), alone.losses()
    assert found == {step: pytest.approx(loss, rel=REST) for step, loss in wanted.items()}
    assert found[1] == pytest.approx(wanted[1], rel=FIRST)
    heard = {datagram["rank"] for datagram in attempt.datagrams}
    assert heard == {0, 1, 2}


def test_bf16_stays_near_fp32(alone: Attempt, tmp_path: Path, text: Path) -> None:
    attempt = run(tmp_path, job(text, ranks=2, train={"precision": "bf16"}))
    wanted = {step: pytest.approx(loss, rel=1e-2) for step, loss in alone.losses().items()}
    assert attempt.losses() == wanted


def test_what_a_step_reports(alone: Attempt) -> None:
    last = alone.events("step")[-1]
    assert (last["phase"], last["step"], last["steps"]) == ("train", 4, 4)
    assert last["lr"] == 1e-2
    assert last["gpu_peak_bytes"] is None
    assert all(last[name] > 0 for name in ("grad_norm", "tokens_per_second", "step_seconds"))
    assert last["rss_bytes"] > 50e6
    assert "ready in" in alone.log()
    assert "first step" in alone.log()


def test_every_step_is_a_line_of_metrics(alone: Attempt) -> None:
    lines = [
        json.loads(line)
        for line in (alone.run_dir / "out" / "metrics.jsonl").read_text().splitlines()
    ]
    assert {line["step"]: line["loss"] for line in lines} == alone.losses()
    names = ("grad_norm", "lr", "tokens_per_second", "step_seconds", "host_bytes", "time")
    assert all(line[name] > 0 for line in lines for name in names)
    assert "mfu" not in lines[0]
    left = [event["seconds_left"] for event in alone.events("step")]
    assert left[0] is None
    assert left[-1] == 0
