"""Job files are masked once for each change, in steps, and cut where many are listed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.asking import ask_thread
from tests.daemon.dispatch.cleaning.ended import ME
from tests.daemon.http.api.made_views import a_job, a_view
from tests.daemon.hung_disks import hung_disk
from tests.daemon.service.test_explain_job import JOB as ROW
from zerotools.jobs.jobfile.parse import job_from_dict, job_to_dict
from zerotools.runs.thinning_record import THINNED, ThinnedRecord
from zerotoolsd.file_checks import file_check_server
from zerotoolsd.file_checks.file_checker_pool import FileCheckers
from zerotoolsd.interface import event_loop_slice
from zerotoolsd.interface.api_types import JobView
from zerotoolsd.interface.event_loop_slice import TimeSlice
from zerotoolsd.queue.rows import JobRow
from zerotoolsd.service.operations import cached_job_views
from zerotoolsd.service.operations.cached_job_views import (
    ShownSpecs,
    ThinnedCheckpoints,
    shortened_job_file,
)
from zerotoolsd.service.read_checkpoints_and_predictions import thinned_sentence
from zerotoolsd.users.served_users import OWN_ONLY
from zerotoolsd.users.start_as_submitter import JobUser


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
    assert len(json.dumps(short.tree)) < 2 * cached_job_views.WHOLE_CHARACTERS
    assert short.tree["script"]["directory"] == "/"
    whole = shown(specs, job)
    assert (whole.shortened, whole.tree["script"]["command"]) == (False, script["command"])
    assert shown(specs, row(), short=True).shortened is False


def test_no_part_of_a_text_is_shown() -> None:
    """A part of a secret is not known as one."""
    tree = shortened_job_file({"a": "--password '" + "s3cret " * 1000, "b": ["x" * 2000], "c": 7})
    assert tree == {"a": "(7012 characters)", "b": ["(2000 characters)"], "c": 7}


def test_others_get_the_loop_between_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_loop_slice, "STEP_SECONDS", 0.0)
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


def view_of(path: Path) -> JobView:
    newest = {"step": 3, "path": str(path), "verified": None, "not_verified": None}
    return replace(a_view(1, a_job()), latest_checkpoint=newest)


def test_a_record_is_shown_and_damage_is_not(tmp_path: Path) -> None:
    record = ThinnedRecord("masters", ("exp_avg",), 1.8e9)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / THINNED).write_text(record.to_json())
    (tmp_path / "b" / THINNED).write_text("damaged")

    async def story() -> None:
        known = ThinnedCheckpoints(ask_thread, OWN_ONLY)
        for name, said in (("a", record.sentence()), ("b", None), ("gone", None)):
            view = await known.with_thinned(
                view_of(tmp_path / name), replace(ROW, uid=ME), waits=True
            )
            assert view.latest_checkpoint is not None
            assert view.latest_checkpoint["thinned"] == said
        assert (
            await known.with_thinned(a_view(1, a_job()), ROW, waits=True)
        ).latest_checkpoint is None

    asyncio.run(story())


def test_a_checkpoint_on_a_disk_that_hangs_is_shown_without_a_wait(tmp_path: Path) -> None:
    looks = {thinned_sentence.__name__: thinned_sentence}
    way = file_check_server.start_check_server(looks)
    with hung_disk(tmp_path / "disk") as disk:
        if disk is None:
            way.close()
            pytest.skip("no file system may be mounted here")
        disk.hang()
        path = disk.door / "step-3"

        async def story() -> None:
            asked = FileCheckers(way, looks)
            known = ThinnedCheckpoints(asked.ask, OWN_ONLY)
            async with asyncio.timeout(30 * cached_job_views.PATIENCE_SECONDS):
                for waits in (True, False, True):
                    view = await known.with_thinned(
                        view_of(path), replace(ROW, uid=ME), waits=waits
                    )
                    assert view.latest_checkpoint is not None
                    assert view.latest_checkpoint["thinned"] is None
            await known.close()
            await asked.close()

        asyncio.run(story())


def test_a_file_system_that_does_not_answer_holds_up_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        answer = asyncio.Event()
        asked: list[object] = []

        async def ask(
            seconds: float, look: Callable[..., Any], *named: object, user: JobUser | None = None
        ) -> str:
            asked.append(named)
            await answer.wait()
            return "it was thinned"

        known = ThinnedCheckpoints(ask, OWN_ONLY)
        many = [tmp_path / str(number) for number in range(100)]
        for path in many:  # a list asks for few of them, and waits for none
            view = await known.with_thinned(view_of(path), ROW, waits=False)
            assert view.latest_checkpoint is not None
            assert view.latest_checkpoint["thinned"] is None
        await asyncio.sleep(0)
        assert len(asked) == cached_job_views.MOST_LOOKS
        async with asyncio.timeout(20 * cached_job_views.PATIENCE_SECONDS):
            await known.with_thinned(view_of(many[0]), ROW, waits=True)
        answer.set()
        view = await known.with_thinned(view_of(many[0]), ROW, waits=True)
        assert view.latest_checkpoint is not None
        assert view.latest_checkpoint["thinned"] == "it was thinned"
        await known.close()

    asyncio.run(story())
