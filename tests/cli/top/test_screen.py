"""The screen, driven by textual's pilot over the real API with a service in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from tests.daemon.api.fakes import FakeService
from tests.daemon.api.made_views import STEP, a_job, a_view, an_attempt
from zerotools.cli.top.looking import Looking
from zerotools.cli.top.screen import Page, Top
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.sensors.fake import FakeProbe, fake_gpu
from zerotools.sensors.snapshot import GpuProcess
from zerotools.sensors.source import SnapshotSource

Play = Callable[[Pilot[None], Top], Awaitable[None]]
NEVER = 3600.0


def drive(client: DaemonClient, play: Play, size: tuple[int, int] = (80, 24)) -> None:
    gpus = [fake_gpu(n, used_gib=30, processes=[GpuProcess(1, 30 << 30)]) for n in range(8)]
    source = SnapshotSource(FakeProbe(gpus))

    async def run() -> None:
        app = Top(Looking(source, client).look, client, NEVER)
        async with app.run_test(size=size) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            await play(pilot, app)

    asyncio.run(run())


@pytest.fixture
def two_jobs(service: FakeService) -> FakeService:
    service.views = {
        3: a_view(3, a_job(name="tiny"), state="running", attempts=(an_attempt(),), progress=STEP),
        4: a_view(4, a_job(name="other"), state="queued"),
    }
    return service


def shown(app: Top, name: str) -> str:
    return str(app.query_one(name, Static).render())


def test_eight_gpus_and_the_jobs_fit_eighty_columns(
    two_jobs: FakeService, client: DaemonClient
) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        assert len(shown(app, "#gpus").split("\n")) == 8
        assert app.query_one(DataTable).row_count == 2
        bottom = max(widget.region.bottom for widget in app.query("#gpus, #host, #jobs, #details"))
        assert bottom <= 24
        assert "job 3 (tiny)" in shown(app, "#details")

    drive(client, play)


def test_it_uses_a_wide_terminal(two_jobs: FakeService, client: DaemonClient) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        first = shown(app, "#gpus").split("\n")[0]
        assert first.count("█") + first.count("▓") + first.count("░") == 40

    drive(client, play, (200, 60))


def test_a_job_is_cancelled_after_yes_and_not_after_no(
    two_jobs: FakeService, client: DaemonClient
) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("c")
        assert isinstance(app.screen, Page)
        await pilot.press("n")
        await app.workers.wait_for_complete()
        assert client.job(3)["state"] == "running"
        await pilot.press("c", "y")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert client.job(3)["state"] != "running"

    drive(client, play)


def test_keys_sort_filter_and_help(two_jobs: FakeService, client: DaemonClient) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("s")
        assert [job["id"] for job in app.jobs] == [4, 3]
        await pilot.press("slash", *"oth", "enter")
        assert [job["id"] for job in app.jobs] == [4]
        assert app.query_one(Input).display is False
        await pilot.press("question_mark")
        assert isinstance(app.screen, Page)
        await pilot.press("escape")
        assert not isinstance(app.screen, Page)

    drive(client, play)


def test_the_cursor_stays_on_its_job_when_others_come(
    two_jobs: FakeService, client: DaemonClient
) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("down")
        assert app.selected is not None
        assert app.selected["id"] == 4
        two_jobs.views[1] = a_view(1, a_job(), state="queued")
        app.refresh_now()
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert len(app.jobs) == 3
        assert app.selected["id"] == 4

    drive(client, play)


def test_what_the_daemon_refuses_is_said(two_jobs: FakeService, client: DaemonClient) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        await pilot.press("r")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert app._notifications
        assert client.job(3)["state"] == "running"

    drive(client, play)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_text_is_never_of_the_colour_behind_it(
    no_color: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)

    async def play(pilot: Pilot[None], app: Top) -> None:
        for name in ("#gpus", "#host", "#jobs"):
            style = app.query_one(name).rich_style
            assert style.color is not None
            assert style.color.is_default or style.color != style.bgcolor
            assert style.color.is_default is not bool(no_color)
        assert app.theme == ("textual-dark" if no_color else "ansi-dark")

    drive(DaemonClient(tmp_path / "no.sock", timeout_seconds=1), play)


def test_without_a_daemon_the_machine_is_shown(tmp_path: Any) -> None:
    async def play(pilot: Pilot[None], app: Top) -> None:
        assert "no daemon answers" in shown(app, "#said")
        assert len(shown(app, "#gpus").split("\n")) == 8

    drive(DaemonClient(tmp_path / "no.sock", timeout_seconds=1), play)


def test_hostile_names_and_log_lines_are_only_text(
    two_jobs: FakeService, client: DaemonClient
) -> None:
    two_jobs.views[3] = a_view(
        3, a_job(name="[red]x[/bold"), state="running", attempts=(an_attempt(),), progress=STEP
    )
    two_jobs.write(3, "rank-0.log", b"[blink]a line[/red \x1b[31mred\n")

    async def play(pilot: Pilot[None], app: Top) -> None:
        app.refresh_now()
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "[red]x[/bold" in shown(app, "#details")
        await pilot.press("r", "l")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert isinstance(app.screen, Page)
        page = str(app.screen.query_one(Static).render())
        assert "\x1b" not in page + shown(app, "#details")

    drive(client, play)


def test_curves_are_not_read_at_every_look(
    two_jobs: FakeService, client: DaemonClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    progress = client.progress
    now = [0.0]

    def counted(job_id: int, **given: Any) -> dict[str, Any]:
        asked.append(job_id)
        return progress(job_id, **given)

    monkeypatch.setattr(client, "progress", counted)
    looking = Looking(SnapshotSource(FakeProbe([])), client, lambda: now[0])
    for _ in range(3):
        looking.look(3)
    first = len(asked)
    now[0] = 11.0
    looking.look(3)
    assert (first, len(asked)) == (len(set(asked)), 2 * first)
