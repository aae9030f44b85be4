"""The daemon shows which checkpoints were thinned without waiting for a file system."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.asking import ask_thread
from tests.daemon.dispatch.cleaning.ended import ME
from tests.daemon.http.api.made_views import a_job, a_view
from tests.daemon.hung_disks import hung_disk
from tests.daemon.service.explain.test_explanation import JOB as ROW
from zerotools.runs.thinning_record import THINNED, ThinnedRecord
from zerotoolsd.file_checks import check_server
from zerotoolsd.file_checks.checkers import FileCheckers
from zerotoolsd.interface.api_types import JobView
from zerotoolsd.service.operations import thinned_checkpoints
from zerotoolsd.service.operations.thinned_checkpoints import ThinnedCheckpoints
from zerotoolsd.service.results.thinned_record import thinned_sentence
from zerotoolsd.users.job_user import JobUser
from zerotoolsd.users.served_users import OWN_ONLY


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
            view = await known.noted(view_of(tmp_path / name), replace(ROW, uid=ME), waits=True)
            assert view.latest_checkpoint is not None
            assert view.latest_checkpoint["thinned"] == said
        assert (await known.noted(a_view(1, a_job()), ROW, waits=True)).latest_checkpoint is None

    asyncio.run(story())


def test_a_checkpoint_on_a_disk_that_hangs_is_shown_without_a_wait(tmp_path: Path) -> None:
    looks = {thinned_sentence.__name__: thinned_sentence}
    way = check_server.start(looks)
    with hung_disk(tmp_path / "disk") as disk:
        if disk is None:
            way.close()
            pytest.skip("no file system may be mounted here")
        disk.hang()
        path = disk.door / "step-3"

        async def story() -> None:
            asked = FileCheckers(way, looks)
            known = ThinnedCheckpoints(asked.ask, OWN_ONLY)
            async with asyncio.timeout(30 * thinned_checkpoints.PATIENCE_SECONDS):
                for waits in (True, False, True):
                    view = await known.noted(view_of(path), replace(ROW, uid=ME), waits=waits)
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
            view = await known.noted(view_of(path), ROW, waits=False)
            assert view.latest_checkpoint is not None
            assert view.latest_checkpoint["thinned"] is None
        await asyncio.sleep(0)
        assert len(asked) == thinned_checkpoints.MOST_LOOKS
        async with asyncio.timeout(20 * thinned_checkpoints.PATIENCE_SECONDS):
            await known.noted(view_of(many[0]), ROW, waits=True)
        answer.set()
        view = await known.noted(view_of(many[0]), ROW, waits=True)
        assert view.latest_checkpoint is not None
        assert view.latest_checkpoint["thinned"] == "it was thinned"
        await known.close()

    asyncio.run(story())
