"""Job files are masked once for each change, in steps, and cut where many are listed."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.daemon.service.explain.test_explanation import JOB as ROW
from zerotools.jobs.jobfile.parse import job_from_dict, job_to_dict
from zerotoolsd.interface import time_slice
from zerotoolsd.interface.time_slice import TimeSlice
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service.operations import shown_specs
from zerotoolsd.service.operations.shown_specs import ShownSpecs, shortened


def row(number: int = 1, **changes: Any) -> JobRow:
    script = {"command": ["sleep", "1"], "directory": "/", **changes.pop("script", {})}
    spec = job_from_dict(
        {"engine": "script", "device": "cpu", "script": script, **changes}, source="job"
    )
    return replace(ROW, id=number, spec_text=json.dumps(job_to_dict(spec)), given_text=None)


def shown(specs: ShownSpecs, job: JobRow, *, short: bool = False) -> Any:
    return asyncio.run(specs.of(job, TimeSlice(), short=short))


def test_what_was_made_is_kept_until_the_job_changes() -> None:
    specs, job = ShownSpecs(), row(env={"A_TOKEN": "hidden"}, script={"command": ["x", "hidden"]})
    first = shown(specs, job)
    assert first.tree["script"]["command"] == ["x", "***"]
    assert first.tree["env"] == {"A_TOKEN": "***"}
    assert shown(specs, replace(job)) is first
    other = shown(specs, row(script={"command": ["y", "plain"]}))
    assert other.tree["script"]["command"] == ["y", "plain"]


def test_the_keys_that_were_set_are_those_of_the_newest_change() -> None:
    specs, job = ShownSpecs(), row(env={"A": "x"})
    found = [
        shown(specs, replace(job, given_text=given)).set_keys
        for given in (None, '{"seed": 0}', '{"seed": 0, "env": {"A": "x"}}', "[")
    ]
    assert found == [None, ("seed",), ("seed", "env.A"), None]


def test_a_job_that_cannot_be_read_shows_the_keys_that_were_set() -> None:
    found = shown(ShownSpecs(), replace(row(), spec_text="{", given_text='{"seed": 0}'))
    assert (found.tree, found.set_keys) == ({}, ("seed",))


def test_the_oldest_are_forgotten_where_they_fill_the_room() -> None:
    jobs = [row(number, env={"A": "x" * 1000}) for number in range(1, 6)]
    specs = ShownSpecs(most=3 * len(jobs[0].spec_text))
    made = [shown(specs, job) for job in jobs]
    assert shown(specs, jobs[4]) is made[4]
    assert shown(specs, jobs[0]) is not made[0]


@pytest.mark.parametrize(
    "script",
    [
        {"command": ["sh", "-c", "x" * 100_000]},
        {"command": ["sleep", *["word"] * 20_000]},
        {"command": ["sleep", *["y" * 900] * 100]},
    ],
)
def test_a_large_job_is_cut_in_a_list_and_whole_by_itself(script: dict[str, Any]) -> None:
    specs, job = ShownSpecs(), row(script=script)
    short = shown(specs, job, short=True)
    assert short.shortened
    assert len(json.dumps(short.tree)) < 2 * shown_specs.WHOLE_CHARACTERS
    assert short.tree["script"]["directory"] == "/"
    whole = shown(specs, job)
    assert (whole.shortened, whole.tree["script"]["command"]) == (False, script["command"])
    assert shown(specs, row(), short=True).shortened is False


def test_no_part_of_a_text_is_shown() -> None:
    """A part of a secret is not known as one."""
    tree = shortened({"a": "--password '" + "s3cret " * 1000, "b": ["x" * 2000], "c": 7})
    assert tree == {"a": "(7012 characters)", "b": ["(2000 characters)"], "c": 7}


def test_others_get_the_loop_between_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slice, "STEP_SECONDS", 0.0)
    job = row(script={"command": ["sleep", *["a=b " * 4000] * 8]})

    async def story() -> int:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        await ShownSpecs().of(job, TimeSlice())
        task.cancel()
        return turns

    assert asyncio.run(story()) > 30
