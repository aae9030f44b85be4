"""What table `steps` makes of the seconds that ranks measured, and of the GPU that there is."""

from __future__ import annotations

from pathlib import Path

from benchmarks.zero_training.cases import Case
from benchmarks.zero_training.setting import GIB, Setting
from benchmarks.zero_training.steps import compared, row, workload


def test_the_timed_model_is_as_large_as_the_gpu_has_room_for(tmp_path: Path) -> None:
    widths = [
        workload(Setting(tmp_path, "cuda", free_bytes=free * GIB)).model["hidden_size"]
        for free in (12, 80, 140, 280)
    ]
    assert widths == sorted(widths)
    assert len(set(widths)) == 3


def test_rates_ratios_and_mfu() -> None:
    peak = {"flops_per_token": 1e9, "peak": 1e13}
    quick = {"ours": [0.1, 0.2, 0.3], "bare": [0.25], "tokens": 1000, "peak": peak}
    slow = {"ours": [0.4], "bare": [0.16], "tokens": 1000, "peak": None}
    assert row(Case("torch", 2), quick).endswith(
        "| 200 ms | 5,000 (50.0%) | 250 ms | 4,000 (40.0%) | 0.800 |"
    )
    results = {Case("torch", 2): quick, Case("torch", 3): quick, Case("deepspeed", 2): slow}
    rows = list(compared(results))[2:]
    assert rows == [
        "| 2, none | 5,000 | 2,500 | 6,250 | 4,000 | 0.80 |",
        "| 3, none | 5,000 |  |  | 4,000 | 1.25 |",
    ]
