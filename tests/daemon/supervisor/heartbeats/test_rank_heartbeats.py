"""The sentence about a stall, from the lines of all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotoolsd.supervisor.heartbeats.rank_heartbeats import Heartbeats, ScriptHeartbeats
from zerotoolsd.supervisor.heartbeats.shared_heartbeat import Beat
from zerotoolsd.supervisor.heartbeats.stall_limits import StallLimits


@pytest.mark.parametrize("on_gpus", [True, False])
def test_ranks_that_hang_together_on_gpus_get_the_advice_about_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_gpus: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    limits = StallLimits.from_plan({"action": "end", "factor": 1, "start": 0}, on_gpus=on_gpus)
    reports = ScriptHeartbeats()
    reports.beats = {rank: Beat(1, "first step", "all-reduce", waits=True) for rank in (0, 1)}
    heartbeats = Heartbeats(limits, reports, 2, own_program=True)
    assert heartbeats.poll({}, 0) is not None
    assert heartbeats.sentence is not None
    assert heartbeats.sentence.startswith("all 2 ranks ")
    assert ("NCCL_P2P_DISABLE" in heartbeats.sentence) == on_gpus
