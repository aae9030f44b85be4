from __future__ import annotations

from tests.cli.top.made_looks import a_look, job_of, text_of
from zerotools.cli.top.drawing.gpu_charts import ROWS, gpu_charts
from zerotools.sensors.fake_gpu_probe import fake_gpu

GPUS = [fake_gpu(0), fake_gpu(1)]
TOTAL = GPUS[0].memory_total_bytes or 0


def test_the_mean_of_all_gpus_over_the_last_hour() -> None:
    past = {
        "gpu.GPU-fake-0.utilization_percent": [None, 100.0, 100.0],
        "gpu.GPU-fake-1.utilization_percent": [0.0, 100.0],
        "gpu.GPU-fake-0.memory_used_bytes": [TOTAL / 2, TOTAL / 2, TOTAL / 4],
    }
    drawn = gpu_charts(a_look(job_of(3), gpus=GPUS, past=past, is_hour=True), 121)
    lines = [text_of(line) for line in drawn]
    assert len(lines) == ROWS
    assert lines[0].split("   ")[0] == "busy 100%, mean of 2 GPUs, the last hour, at most 100%"
    assert "memory 25%, the last hour, at most 50%" in lines[0]
    top, bottom = lines[1], lines[-1]
    assert top[:6] == "100% │"
    assert bottom[:6] == "  0% │"
    assert max(map(len, lines)) == 121
    busy = [line[6:59] for line in lines[1:]]
    assert [row.count("█") for row in busy] == [17, 17, 17, 35, 35]
    assert busy[2].count("▄") == 18
    assert {row[0] for row in busy} == {" "}, "nothing was measured there"


def test_no_chart_without_a_past() -> None:
    assert gpu_charts(a_look(job_of(3), gpus=GPUS), 120) == []
    assert gpu_charts(a_look(job_of(3), gpus=[]), 120) == []
