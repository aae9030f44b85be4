"""How long a start usually takes, by what earlier attempts reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.dispatchers import Running
from tests.daemon.service.test_answer_requests import submit, tell
from zerotoolsd.attempts.usual_start_duration import StartHistory, phase_seconds
from zerotoolsd.interface.event_loop_slice import TimeSlice

PHASES = (
    ("importing torch", 10.0),
    ("reading the data", 14.0),
    ("loading step 40", 16.0),
    ("taking the first step", 46.0),
)


def report(run_dir: Path, shift: float = 0.0) -> None:
    """Write what an attempt reports that starts; later ones take `shift` longer to load."""
    lines = [{"event": "phase", "doing": doing, "time": when} for doing, when in PHASES]
    lines[-1]["time"] = 46.0 + shift
    lines += [{"event": "step", "step": 1, "time": 50.0 + shift}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run_dir / "progress.jsonl").write_text(f"no json\n[1]\n{text}", "utf-8")


def test_a_phase_lasts_until_the_next_one_or_the_first_step(tmp_path: Path) -> None:
    report(tmp_path)
    assert phase_seconds(tmp_path) == {
        "importing torch": 4.0,
        "reading the data": 2.0,
        "loading step N": 30.0,
        "taking the first step": 4.0,
        "to the first step": 40.0,
    }
    assert phase_seconds(tmp_path / "gone") == {}


def test_the_median_is_of_earlier_starts_of_similar_jobs(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        history = StartHistory(it.engine.store)
        for number, shift in enumerate((0.0, 10.0, 500.0), start=1):
            job = await submit(it, "exit=0")
            assert job.id == number
            await it.reach(job.id, "succeeded")
            report(it.service.run_dir(job.id, 1), shift)
        other = await submit(it, "exit=0", model={"config": {"model_type": "other"}})
        await it.reach(other.id, "succeeded")
        mine = await submit(it, "exit=0")
        rows = {number: it.engine.store.job(number) for number in (1, other.id, mine.id)}
        usual = {
            number: await history.usual_seconds(row, TimeSlice()) for number, row in rows.items()
        }
        assert usual[mine.id]["loading step N"] == pytest.approx(40.0)
        assert usual[mine.id]["importing torch"] == pytest.approx(4.0)
        assert usual[mine.id]["to the first step"] == pytest.approx(50.0)
        assert usual[other.id] == {"importing torch": pytest.approx(4.0)}
        assert usual[1] == {}
        assert mine.usual_start_seconds == pytest.approx(50.0)
        await it.reach(mine.id, "succeeded")
        over = await it.service.job(mine.id)
        assert over.usual_start_seconds is None

    tell(tmp_path / "state", story)


def test_a_job_that_waited_has_the_times_of_those_that_started_meanwhile(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        before = await submit(it, "exit=0")
        history, time_slice = StartHistory(it.engine.store), TimeSlice()
        mine = await submit(it, "exit=0")
        row = it.engine.store.job(mine.id)
        waits = replace(row, standing=replace(row.standing, state="queued"))
        assert await history.usual_seconds(waits, time_slice) == {}
        await it.reach(before.id, "succeeded")
        report(it.service.run_dir(before.id, 1))
        starts = replace(row, standing=replace(row.standing, state="launching"))
        usual = await history.usual_seconds(starts, time_slice)
        assert usual["to the first step"] == pytest.approx(40.0)

    tell(tmp_path / "state", story)


def test_earlier_jobs_are_read_once_and_in_several_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerotoolsd.interface.event_loop_slice.STEP_SECONDS", 0.0)

    async def story(it: Running) -> None:
        for _ in range(3):
            job = await submit(it, "exit=0")
            await it.reach(job.id, "succeeded")
        history, first, second = StartHistory(it.engine.store), TimeSlice(), TimeSlice()
        row = it.engine.store.job(job.id)
        await history.usual_seconds(row, first)
        assert first.pauses
        waits = replace(row, standing=replace(row.standing, state="queued"))
        await history.usual_seconds(waits, second)
        assert not second.pauses

    tell(tmp_path / "state", story)
