from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from zerotools.cli.job_views.machine_history import history_lines
from zerotools.sensors.snapshot_source import SnapshotSource

GIB = float(2**30)


def columns(*values: float | None) -> dict[str, list[float | None]]:
    return {"mean": list(values), "most": list(values)}


def answer(**series: dict[str, list[float | None]]) -> dict[str, Any]:
    return {"step_seconds": 10, "times": [100, 110, 120, 130], "series": series, "trouble": None}


def test_whose_memory_it_was() -> None:
    found = SnapshotSource(FakeProbe([fake_gpu(0)])).read()
    snapshot = replace(found, host=replace(found.host, memory_total_bytes=2**40))
    total = float(snapshot.gpus[0].memory_total_bytes or 0)
    tree = answer(
        **{
            "gpu.GPU-fake-0.memory_used_bytes": columns(0.0, 0.0, total, total / 2),
            "gpu.GPU-gone.memory_used_bytes": columns(1 * GIB, None, None, None),
            "host.memory_used_bytes": columns(0.0, 0.0, 0.0, 0.0),
            "host.swap_used_bytes": columns(0.0, 0.0, 0.0, 0.0),
            "job.3.gpu.GPU-fake-0.memory_used_bytes": columns(None, None, GIB, GIB),
            "job.3.host_memory_bytes": columns(None, None, GIB, 2 * GIB),
            "job.12.host_memory_bytes": columns(None, None, GIB, 2 * GIB),
        }
    )
    lines = history_lines(tree, 40, snapshot, {3: "job 3 (tiny)"}, None)
    assert lines[0] == "the last 40 s, one point per 10 s"
    text = "\n".join(lines[2:])
    assert [line.split("  ")[0] for line in lines[2:]] == [
        *("GPU 0 Fake H100", "GPU-gone", "host", "job 3 (tiny)", "", "job 12"),
    ]
    assert "▁▁" in lines[2]
    assert "█" in lines[2]
    assert lines[2].endswith("most")
    assert lines[3].endswith("1.0 GiB most")  # not there any more
    assert "swap" not in text
    assert "GPU 0" in lines[5] or "GPU 0" in lines[6]
    narrow = history_lines(tree, 40, snapshot, {}, 60)
    assert max(map(len, narrow)) <= 60


def test_nothing_is_known() -> None:
    tree = {"step_seconds": 10, "times": [], "series": {}, "trouble": "off"}
    assert history_lines(tree, 7200, None, {}, 80) == ["no records of the last 2 h 00 min"]
