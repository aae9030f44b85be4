"""The application, driven by textual's pilot over the real API with a service in memory."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.strip import Strip

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.cli.top.made_looks import a_look, job_of
from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import STEP, a_job, a_view, an_attempt
from tests.daemon.waiting import wait_async, wait_for
from zerotools.cli.job_views.describe_job import Job
from zerotools.cli.top.drawing.view_state import JOB
from zerotools.cli.top.reading.job_details import LogLines
from zerotools.cli.top.reading.read_screen_values import ScreenData, ScreenReader
from zerotools.cli.top.screen.colour_theme import styles_of
from zerotools.cli.top.screen.top_app import EXIT_TERMINATED, BackgroundThread, Canvas, Reads, Top
from zerotools.core.errors import EXIT_INTERRUPTED
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.sensors.snapshot_source import SnapshotSource

Play = Callable[[Pilot[int], Top], Awaitable[None]]
NEVER = 3600.0


def looking(client: DaemonClient) -> ScreenReader:
    return ScreenReader(SnapshotSource(FakeProbe([fake_gpu(n) for n in range(8)])), client)


def drive(
    client: DaemonClient,
    play: Play,
    size: tuple[int, int] = (80, 24),
    reads: Reads | None = None,
) -> Top:
    app = Top(reads or looking(client), client, NEVER, styles_of(None, colours=True))

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await settled(pilot, app)
            await play(pilot, app)

    asyncio.run(run())
    wait_for(is_alone, "the threads of the screen to end")  # they ask the daemon of the test
    return app


def is_alone() -> bool:
    return not any(each.name in ("top-reads", "top-asks") for each in threading.enumerate())


async def settled(pilot: Pilot[int], app: Top) -> None:
    async def is_settled() -> bool:
        await pilot.pause()
        return app.is_settled

    await wait_async(is_settled, "what is read and asked")
    await pilot.pause()


async def pressed(pilot: Pilot[int], app: Top, *keys: str) -> str:
    await pilot.press(*keys)
    await settled(pilot, app)
    return app.shown_text


@pytest.fixture
def two_jobs(service: FakeService) -> FakeService:
    attempts = (an_attempt(),)
    service.views = {
        3: a_view(3, a_job(name="tiny"), state="running", attempts=attempts, progress=STEP),
        4: a_view(4, a_job(name="other"), state="queued"),
    }
    return service


def test_the_screen_is_filled(two_jobs: FakeService, client: DaemonClient) -> None:
    async def play(pilot: Pilot[int], app: Top) -> None:
        lines = app.shown_text.split("\n")
        assert len(lines) == 24
        assert sum("/80G" in line for line in lines) == 8
        assert "── job 3 (tiny) ──" in app.shown_text
        assert "4 other" in app.shown_text

    drive(client, play)


def test_a_job_is_cancelled_after_yes(two_jobs: FakeService, client: DaemonClient) -> None:
    async def play(pilot: Pilot[int], app: Top) -> None:
        assert "Cancel job 3 (tiny)?" in await pressed(pilot, app, "c")
        await pressed(pilot, app, "n")
        assert client.job(3)["state"] == "running"
        assert "job 3 (tiny) is stopping" in await pressed(pilot, app, "c", "y")
        assert client.job(3)["state"] == "stopping"

    drive(client, play)


def test_priority_and_what_the_daemon_refuses(two_jobs: FakeService, client: DaemonClient) -> None:
    async def play(pilot: Pilot[int], app: Top) -> None:
        assert "job 3 (tiny) has priority 1" in await pressed(pilot, app, "plus")
        assert client.job(3)["priority"] == 1
        assert "job 3 is not held: it is running" in await pressed(pilot, app, "r")

    drive(client, play)


def test_a_log_is_followed(two_jobs: FakeService, client: DaemonClient) -> None:
    two_jobs.write(3, "rank-0.log", b"[blink]a line[/red \x1b[31mred\n")

    async def play(pilot: Pilot[int], app: Top) -> None:
        text = await pressed(pilot, app, "l")
        assert "log of job 3 (tiny), rank 0" in text
        assert "[blink]a line[/red \\x1b[31mred" in text
        two_jobs.write(3, "rank-0.log", b"a new line\n")
        app.read_log()
        await settled(pilot, app)
        assert "a new line" in app.shown_text
        assert "rank 1" in await pressed(pilot, app, "right")
        assert "3 tiny" in await pressed(pilot, app, "escape")

    drive(client, play)


def test_a_log_that_is_refused_says_why(two_jobs: FakeService, client: DaemonClient) -> None:
    async def play(pilot: Pilot[int], app: Top) -> None:
        del two_jobs.views[3]
        assert "job 3 does not exist" in await pressed(pilot, app, "l")

    drive(client, play)


def test_sorting_filter_and_cursor_hold_over_readings(
    two_jobs: FakeService, client: DaemonClient
) -> None:
    async def play(pilot: Pilot[int], app: Top) -> None:
        await pressed(pilot, app, "s", "down")
        assert (app.state.chosen, app.state.order) == (4, 1)
        two_jobs.views[1] = a_view(1, a_job(name="new"), state="queued")
        two_jobs.views[2] = a_view(2, a_job(name="newer"), state="queued")
        app.refresh_now()
        await settled(pilot, app)
        assert (app.state.chosen, app.state.order) == (4, 1)
        text = await pressed(pilot, app, "slash", *"oth", "enter")
        assert "tiny" not in text
        app.refresh_now()
        await settled(pilot, app)
        assert "tiny" not in app.shown_text
        assert "filter: oth" in app.shown_text

    drive(client, play)


def test_the_mouse_chooses_and_the_wheel_moves(two_jobs: FakeService, client: DaemonClient) -> None:
    async def play(pilot: Pilot[int], app: Top) -> None:
        row = next(n for n, line in enumerate(app.shown_text.split("\n")) if "4 other" in line)
        await pilot.click(offset=(5, row))
        await settled(pilot, app)
        assert app.state.chosen == 4
        await pilot.click(offset=(5, 0))
        assert app.state.chosen == 4
        app.on_mouse_scroll_up()
        assert app.state.chosen == 3
        app.on_mouse_scroll_down()
        assert app.state.chosen == 4
        await pilot.click(offset=(5, row))
        await settled(pilot, app)
        assert app.state.page == JOB, "of the job that was chosen already"
        foot = app.shown_text.split("\n")[23]
        await pilot.click(offset=(foot.index("hold"), 23))
        await settled(pilot, app)
        assert app.state.question.startswith("Hold job 4 (other)?")
        await pressed(pilot, app, "y")
        assert client.job(4)["state"] == "on_hold"
        foot = app.shown_text.split("\n")[23]
        assert "job 4 (other) is held" in foot

    drive(client, play)


@pytest.mark.parametrize("sizes", [((200, 60), (80, 24), (1, 1), (30, 5), (110, 40))])
def test_it_may_be_resized_at_any_time(
    sizes: tuple[tuple[int, int], ...], two_jobs: FakeService, client: DaemonClient
) -> None:
    async def play(pilot: Pilot[int], app: Top) -> None:
        for _ in range(3):
            for columns, rows in sizes:
                await pilot.resize_terminal(columns, rows)
                await wait_async(has_size(app, columns, rows), "the size of the terminal")
                lines = app.shown_text.split("\n")
                assert len(lines) <= rows
                assert max(map(len, lines)) <= columns

    drive(client, play)


def test_every_key_is_harmless_where_no_job_is(tmp_path: Path) -> None:
    async def play(pilot: Pilot[int], app: Top) -> None:
        await pilot.press(*"clr+-shjkgG?", "escape", "down", "pageup", "enter", "home", "tab", "f5")
        assert "no daemon answers" in app.shown_text
        assert sum("/80G" in line for line in app.shown_text.split("\n")) == 8

    drive(DaemonClient(tmp_path / "no.sock", timeout_seconds=1), play)


@pytest.mark.parametrize(
    ("key", "status"), [("q", 0), ("ctrl+c", EXIT_INTERRUPTED), ("ctrl+q", None)]
)
def test_it_ends(key: str, status: int | None, two_jobs: FakeService, client: DaemonClient) -> None:
    async def play(pilot: Pilot[int], app: Top) -> None:
        await pilot.press(key)

    app = drive(client, play)
    assert app.return_value == status
    assert app.failure is None


def test_a_signal_ends_it(two_jobs: FakeService, client: DaemonClient) -> None:
    async def play(pilot: Pilot[int], app: Top) -> None:
        signal.raise_signal(signal.SIGTERM)
        await pilot.pause()

    assert drive(client, play).return_value == EXIT_TERMINATED


class Slow:
    """Reads that wait until they are let go."""

    def __init__(self) -> None:
        self.asked: list[int | None] = []
        self.jobs = (job_of(3), job_of(4))

    def read(self, chosen: int | None) -> ScreenData:
        self.asked.append(chosen)
        return a_look(*self.jobs)

    def log(self, job: Job, rank: int) -> LogLines:
        raise AssertionError(job, rank)


def test_the_details_are_those_of_the_job_that_was_chosen_meanwhile(client: DaemonClient) -> None:
    reads = Slow()

    async def play(pilot: Pilot[int], app: Top) -> None:
        app.refresh_now()
        await pilot.press("down")
        await settled(pilot, app)
        assert reads.asked[-1] == 4

    drive(client, play, reads=reads)


def has_failed(app: Top) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return app.failure is not None

    return look


def has_size(app: Top, columns: int, rows: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return app.shown_size == (columns, rows)

    return look


class Broken(Slow):
    def log(self, job: Job, rank: int) -> LogLines:
        raise ValueError("a defect")


def test_a_defect_ends_the_screen_and_is_kept_for_the_command(client: DaemonClient) -> None:
    async def play(pilot: Pilot[int], app: Top) -> None:
        await pilot.press("l")
        await wait_async(has_failed(app), "the screen to end")

    app = drive(client, play, reads=Broken())
    assert isinstance(app.failure, ValueError)


class Counted(Canvas):
    """Notes which lines are drawn."""

    drawn: list[int]

    def render_line(self, y: int) -> Strip:
        self.drawn.append(y)
        return super().render_line(y)


class OneCanvas(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.canvas = Counted(styles_of(None, colours=True), lambda: None)
        self.canvas.drawn = []

    def compose(self) -> ComposeResult:
        yield self.canvas


def test_only_lines_that_differ_are_drawn_again() -> None:
    async def run() -> None:
        app = OneCanvas()
        async with app.run_test(size=(20, 6)) as pilot:
            lines = [[(f"line {n}", "strong")] for n in range(5)]
            app.canvas.show(lines)
            await pilot.pause()
            app.canvas.drawn.clear()
            app.canvas.show(lines)
            await pilot.pause()
            assert app.canvas.drawn == []
            app.canvas.show([*lines[:2], [("line 2", "bad")], lines[3]])
            await pilot.pause()
            assert sorted(app.canvas.drawn) == [2, 4]
            assert app.canvas.text == "line 0\nline 1\nline 2\nline 3"

    asyncio.run(run())


def test_a_line_is_as_wide_as_the_terminal() -> None:
    async def run() -> None:
        app = OneCanvas()
        async with app.run_test(size=(10, 3)) as pilot:
            app.canvas.show([[("数据清洗数据", ""), ("x" * 30, "")], []])
            await pilot.pause()
            assert [app.canvas.render_line(y).cell_length for y in range(3)] == [10, 10, 10]

    asyncio.run(run())


def test_what_is_done_beside_comes_to_the_loop_in_order() -> None:
    told: list[Any] = []

    async def run() -> None:
        beside, loop_thread = BackgroundThread("test-ends"), threading.get_ident()
        threads: list[int] = []

        def fails() -> int:
            threads.append(threading.get_ident())
            raise ValueError("no")

        beside.do(lambda: 7, told.append, told.append)
        beside.do(fails, told.append, lambda error: told.append(str(error)))
        assert not beside.is_idle

        async def is_idle() -> bool:
            return beside.is_idle

        await wait_async(is_idle, "both")
        assert told == [7, "no"]
        assert threads != [loop_thread]
        beside.close()

    asyncio.run(run())
    wait_for(lambda: "test-ends" not in {each.name for each in threading.enumerate()}, "its end")


def test_what_comes_after_the_end_is_nobodys() -> None:
    """The thread hangs while the loop ends, and nothing is raised then."""
    goes_on, is_done = threading.Event(), threading.Event()

    def hangs() -> None:
        goes_on.wait()
        threading.current_thread().name = "done"

    async def run() -> None:
        beside = BackgroundThread("test")
        beside.do(hangs, lambda _: is_done.set(), lambda _: is_done.set())
        beside.do(is_done.set, lambda _: None, lambda _: None)
        beside.close()

    asyncio.run(run())
    goes_on.set()
    assert is_done.wait(20)
