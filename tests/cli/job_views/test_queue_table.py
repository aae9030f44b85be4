from __future__ import annotations

import time
from typing import Any

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.daemon.http.api.made_views import STEP, a_job, a_view, an_attempt
from zerotools.cli.job_views.describe_job import Job
from zerotools.cli.job_views.queue_table import (
    GIVING_WAY,
    first_clauses,
    gpu_holders,
    machine_lines,
    queue_lines,
)
from zerotools.cli.output.colours import ALWAYS, colour_choice
from zerotools.sensors.snapshot_source import SnapshotSource

NEEDS = "needs 4 GPUs: 0 of 8 free: GPUs 0-2: job 1; GPUs 3-4: job 2"


def job_of(number: int, user: str, name: str, **changes: Any) -> Job:
    usual = {"created": time.time() - 3 * 86400, "reason": None, "uid": ord(user[0])}
    return a_view(number, a_job(), **{**usual, **changes, "user": user, "name": name}).to_json()


def runs(number: int, user: str, name: str, **changes: Any) -> Job:
    saved = {"step": 10, "path": "/o", "verified": None, "not_verified": "no report"}
    usual = {"state": "running", "attempts": (an_attempt(),), "progress": STEP}
    return job_of(number, user, name, **{**usual, "latest_checkpoint": saved, **changes})


def five_jobs() -> list[Job]:
    now = time.time()
    hung = {"name": "step", "last_step": now - 725, "last_progress": now - 725, "stalled": True}
    hung |= {"doing": None, "since": None, "quiet": True, "last_line": None, "stall": "it hangs"}
    return [
        runs(1, "anna", "llama-8b-instruct-on-our-own-conversations"),
        runs(2, "bob", "lora", phase=hung, state_since=now - 725),
        job_of(3, "bob", "sweep", reason=NEEDS, created=now - 1140, priority=5),
        job_of(4, "anna", "evaluation", reason="starts at 22:30", created=now - 4 * 3600),
    ]


def test_columns_give_way_in_their_order_until_the_table_fits() -> None:
    jobs = five_jobs()
    wide = queue_lines(jobs, 200)
    everything = "id user prio name state age ranks stage step left loss saved why"
    assert " ".join(wide[0].split()) == everything
    assert queue_lines(jobs, 80) == [
        "id  user  prio  name                      state        age  ranks   step    loss",
        " 1  anna     0  llama-8b-instruct-on-ou…  running       3d  2 CPU  12/40  2.5000",
        " 2  bob      0  lora                      stalled 12m   3d  2 CPU  12/40  2.5000",
        "    it hangs",
        " 3  bob      5  sweep                     queued       19m  needs 4 GPUs…",
        " 4  anna     0  evaluation                queued        4h  starts at 22:30",
    ]
    gone = [column for column, width in GIVING_WAY if not width]
    for columns in range(60, 201):
        header, *rows = queue_lines(jobs, columns)
        assert all(len(line) <= columns for line in (header, *rows)), columns
        left_out = [name not in header.split() for name in gone]
        assert left_out == sorted(left_out, reverse=True), "the last ones stay longest"


def test_why_a_job_failed_has_a_line_of_its_own() -> None:
    why = "rank 0 exited with 1: ValueError: tokenizer.json has 32000 tokens, the model 50257"
    lines = queue_lines([*five_jobs(), job_of(7, "anna", "bad", state="failed", reason=why)], 96)
    assert lines[-2].split()[:3] == ["7", "anna", "0"]
    assert lines[-1] == f"    {why}"
    with colour_choice(ALWAYS):
        (*_, painted) = queue_lines([job_of(7, "anna", "x", state="failed", reason=why)], 96)
    assert painted == f"    \x1b[31m{why}\x1b[0m"


def test_a_loss_of_nan_is_red() -> None:
    with colour_choice(ALWAYS):
        _, line, fine = queue_lines(
            [runs(1, "anna", "x", progress={**STEP, "loss": None}), runs(2, "anna", "y")], 120
        )
    assert "\x1b[31mnan\x1b[0m" in line
    assert "\x1b[31m" not in fine


def test_a_reason_without_room_beside_its_job_is_below_it() -> None:
    lines = queue_lines([job_of(3, "bob", "a-sweep-of-rates", reason=NEEDS)], 40)
    assert [line.strip() for line in lines[2:]] == ["needs 4 GPUs: 0 of 8 free: GPUs 0-2…"]
    assert max(map(len, lines)) <= 40


def test_a_column_of_reasons_is_named_if_it_has_one() -> None:
    waits = job_of(3, "anna", "sweep", reason=NEEDS)
    assert "why" not in queue_lines([runs(1, "anna", "x"), waits], 140)[0]
    ended = runs(2, "anna", "y", state="cancelled", reason="cancelled by anna")
    assert queue_lines([ended, waits], 140)[0].endswith("saved  why")


def test_the_time_left_of_a_job_that_trains() -> None:
    progress = {**STEP, "seconds_left": 3 * 3600.0}
    jobs = [runs(1, "anna", "x", progress=progress), runs(2, "anna", "y", progress=None)]
    header, first, second = queue_lines(jobs, 80)
    assert header.split()[5:] == ["stage", "step", "left", "loss", "saved"]
    assert first.split()[-5:-2] == ["3h", "2.5000", "10"]
    assert second.split()[-5:-2] == ["-", "-", "10"]
    assert "left" not in queue_lines(jobs[1:], 80)[0], "no job has it"
    assert "left" not in queue_lines(jobs, None)[0], "a pipe gets the columns that it always got"


def test_without_a_terminal_everything_is_there() -> None:
    lines = queue_lines(five_jobs(), None)
    assert lines[3].endswith(NEEDS)
    assert lines[1].split()[3] == "llama-8b-instruct-on-our-own-conversati…"
    assert {len(line.split("  ")) > 8 for line in lines} == {True}
    assert queue_lines([], None) == ["id  name  state  age  ranks  stage  step  loss  saved  why"]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (len(NEEDS), NEEDS),
        (len(NEEDS) - 1, "needs 4 GPUs: 0 of 8 free: GPUs 0-2: job 1…"),
        (40, "needs 4 GPUs: 0 of 8 free…"),
        (20, "needs 4 GPUs…"),
        (9, "needs 4 …"),
    ],
)
def test_a_reason_is_cut_after_a_clause(columns: int, text: str) -> None:
    assert first_clauses(NEEDS, columns) == text


def test_gpus_are_grouped_by_their_holders() -> None:
    jobs = five_jobs()
    gpus = [*(fake_gpu(n) for n in range(7)), fake_gpu(7, error="NVML: GPU is lost")]
    leases = [{"gpu_uuid": f"GPU-fake-{n}", "job_id": 1 + (n > 3), "uid": n > 3} for n in range(6)]
    named = "anna/llama-8b-instruct-on-our-own-conversations"
    assert gpu_holders(gpus, leases, jobs) == {
        named: "0-3",
        "bob/lora": "4-5",
        "free": "6",
        "error": "7",
    }
    assert gpu_holders(gpus[:2], leases[:1], [])["job 1"] == "0", "a job that is not listed"
    snapshot = SnapshotSource(FakeProbe(gpus)).read()
    first, second, blank = machine_lines(snapshot, leases, jobs, 200)
    assert first.startswith("6 of 8 GPUs in use; 1 running, 1 stalled, 2 queued; memory ")
    assert (second, blank) == (f"GPUs 0-3 {named}, 4-5 bob/lora, 6 free, 7 error", "")
    narrow = machine_lines(snapshot, leases, jobs, 70)
    assert narrow[1:] == [f"GPUs 0-3 {named},", "     4-5 bob/lora, 6 free, 7 error", ""]


def test_every_holder_of_a_gpu_is_shown() -> None:
    """They continue on a second line, then names become shorter, and then more lines follow."""
    gpus = [fake_gpu(number) for number in range(16)]
    snapshot = SnapshotSource(FakeProbe(gpus)).read()
    leases = [{"gpu_uuid": gpu.uuid, "job_id": gpu.index, "uid": gpu.index % 2} for gpu in gpus]
    jobs = [runs(number, "ab"[number % 2], f"job-{number}-ablation") for number in range(16)]

    def shown(count: int, columns: int) -> list[str]:
        used = machine_lines(snapshot, leases[:count], jobs, columns)[1:-1]
        assert all(len(line) <= columns for line in used)
        holders = ", ".join(line[5:].rstrip(",") for line in used).split(", ")
        assert [each.split()[0] for each in holders[:count]] == list(map(str, range(count)))
        return used

    assert len(shown(3, 80)) == 1
    whole, short = shown(6, 80), shown(9, 80)
    assert len(whole) == len(short) == 2
    assert whole[0].startswith("GPUs 0 a/job-0-ablation, 1 b/job-1-ablation")
    assert short[0].startswith("GPUs 0 a/job-0-a…, 1 b/job-1-a…")
    assert len(shown(16, 80)) == 4
    assert "a/job-0-abl…" in shown(16, 100)[0], "no shorter than the lines need"
