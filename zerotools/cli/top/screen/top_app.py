"""The application of `zerotools top`: reads in a thread, draws, sends requests to the daemon."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import ClassVar, Protocol, TypeVar

from rich.segment import Segment
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from zerotools.cli.job_views.describe_job import Job, title
from zerotools.cli.output import render
from zerotools.cli.top.drawing.styled_lines import Line, in_ascii
from zerotools.cli.top.drawing.view_state import JOB, LOG, ViewState
from zerotools.cli.top.drawing.whole_screen import DrawnScreen, draw_screen, shown_log
from zerotools.cli.top.reading.job_details import LogLines
from zerotools.cli.top.reading.read_screen_values import ScreenData
from zerotools.cli.top.screen.colour_theme import Styles
from zerotools.cli.top.screen.key_actions import (
    CANCEL,
    HOLD,
    PRIORITY,
    QUIT,
    RESUME,
    KeyContext,
    LateResponses,
    UserAction,
    chosen_of,
    press,
    typed,
)
from zerotools.core.errors import EXIT_INTERRUPTED, ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.states import ACTIVE, TERMINAL

T = TypeVar("T")
_Task = Callable[[], None]


class BackgroundThread:
    """Runs tasks one after another in a thread, and passes their results to the event loop.

    When the program ends, it does not wait for the thread, which a file system or a driver may
    block.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._count = 0
        Thread(target=self._work, name=name, daemon=True).start()

    @property
    def is_idle(self) -> bool:
        """True if no task is running or waiting."""
        return self._count == 0

    def do(
        self, task: Callable[[], T], then: Callable[[T], None], failed: Callable[[Exception], None]
    ) -> None:
        """Run `task` in the thread. Later the event loop calls `then` with the result, or `failed`
        with the error.
        """
        self._count += 1

        def finish(value: T | None, error: Exception | None) -> None:
            self._count -= 1
            if error is not None:
                failed(error)
            else:
                then(value)  # type: ignore[arg-type]

        def work() -> None:
            value, problem = None, None
            try:
                value = task()
            except Exception as error:  # reported to the waiting caller
                problem = error
            with suppress(RuntimeError):  # the loop is closed: the screen is gone
                self._loop.call_soon_threadsafe(finish, value, problem)

        self._tasks.put(work)

    def close(self) -> None:
        """Let the thread end after its tasks."""
        self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


class Canvas(Widget, can_focus=True):
    """The widget that shows the lines of the screen. Only lines that changed are written to the
    terminal.

    `resized` is called after a change of the size.
    """

    DEFAULT_CSS = "Canvas { width: 1fr; height: 1fr; }"

    def __init__(self, styles: Styles, resized: Callable[[], None]) -> None:
        super().__init__()
        self._resized = resized
        self._styles_by_meaning = styles
        self._lines: list[Line] = []

    @property
    def text(self) -> str:
        """The displayed text, without its styles."""
        return "\n".join("".join(text for text, _ in line).rstrip() for line in self._lines)

    def show(self, lines: Sequence[Line]) -> None:
        """Replace the displayed lines."""
        before, self._lines = self._lines, [list(line) for line in lines]
        columns = self.size.width
        for y in range(max(len(before), len(self._lines))):
            old = before[y] if y < len(before) else None
            new = self._lines[y] if y < len(self._lines) else None
            if old != new:
                self.refresh(Region(0, y, columns, 1))

    def on_resize(self) -> None:
        self._resized()

    def render_line(self, y: int) -> Strip:
        """Return one line of the screen in the form that textual draws."""
        line = self._lines[y] if y < len(self._lines) else []
        styles = self._styles_by_meaning
        segments = [Segment(text, styles.get(meaning)) for text, meaning in line if text]
        return Strip(segments).adjust_cell_length(self.size.width)


LOG_SECONDS = 1.0
SAID_SECONDS = 8.0
EXIT_TERMINATED = 128 + signal.SIGTERM


class Reads(Protocol):
    """The methods of `ScreenReader` that the application calls. Tests have a fake with the same
    methods."""

    def read(self, chosen: int | None) -> ScreenData:
        """Return the values of the screen, with the details of the job `chosen`."""
        ...

    def log(self, job: Job, rank: int) -> LogLines:
        """Return the last lines of the log of a job's rank."""
        ...


class Top(App[int]):
    """The application of `zerotools top`. With `letters`, the screen is drawn in ASCII. `now`
    returns seconds since 1970.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]
    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen { overflow: hidden; }"

    def __init__(
        self,
        reads: Reads,
        client: DaemonClient,
        interval: float,
        styles: Styles,
        *,
        letters: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(ansi_color=True)  # the terminal's own colours
        self.failure: Exception | None = None
        self.state = ViewState()
        self.data: ScreenData | None = None
        self._reads = reads
        self._client = client
        self._interval = interval
        self._letters = letters
        self._now = now
        self._canvas = Canvas(styles, self.draw)
        self._rank_log: LogLines | None = None
        self._drawn = DrawnScreen([], self.state, {})
        self._reading: BackgroundThread
        self._asking: BackgroundThread
        self._message_until = 0.0
        self._late_answers = LateResponses()

    def compose(self) -> ComposeResult:
        yield self._canvas

    def on_mount(self) -> None:
        """Start the threads and the timers, and read at once."""
        self._reading, self._asking = BackgroundThread("top-reads"), BackgroundThread("top-asks")
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit, EXIT_TERMINATED)
        self.app_resume_signal.subscribe(self, self._redraw_after_suspend)
        self._canvas.focus()
        self.set_interval(self._interval, self.refresh_now)
        self.set_interval(LOG_SECONDS, self.read_log)
        self.refresh_now()

    def on_unmount(self) -> None:
        self._reading.close()
        self._asking.close()

    @property
    def shown_text(self) -> str:
        """The text on the screen, without its styles."""
        return self._canvas.text

    @property
    def shown_size(self) -> tuple[int, int]:
        """The columns and rows of the screen."""
        return self._canvas.size

    @property
    def is_settled(self) -> bool:
        """True if no value is being read and no request is in progress."""
        return self._reading.is_idle and self._asking.is_idle

    def refresh_now(self) -> None:
        """Start to read all values, unless they are being read already or the page of a log is
        shown.
        """
        if self._reading.is_idle and self.state.page != LOG:
            chosen = self.state.chosen
            then = partial(self.show, chosen)
            self._reading.do(partial(self._reads.read, chosen), then, self._fail)

    def show(self, chosen: int | None, data: ScreenData) -> None:
        """Draw the new values `data`, which include the details of the job `chosen`."""
        before = [] if self.data is None else self.state.listed(self.data.jobs)
        self.data = data
        self.state = self.state.keep_chosen(self.state.listed(data.jobs), before)
        self.draw()
        if self.state.chosen != chosen:
            self.refresh_now()

    def draw(self) -> None:
        """Draw the values that were read last, in the size of the terminal."""
        if self.state.message[0] and time.monotonic() > self._message_until:
            self.state = replace(self.state, message=("", ""))
        columns, rows = self._canvas.size
        self._drawn = draw_screen(self.data, self._rank_log, self.state, columns, rows, self._now())
        self.state = self._drawn.state
        lines = self._drawn.lines
        self._canvas.show([in_ascii(line) for line in lines] if self._letters else lines)

    def on_key(self, event: events.Key) -> None:
        event.stop()
        if self._late_answers.consumes(event.key):
            return
        before = self.state
        self.state, wish = press(before, event.key, event.character, self._shown())
        if self.state.message[0]:
            self._message_until = time.monotonic() + SAID_SECONDS
        self._after(before, wish)

    def on_paste(self, event: events.Paste) -> None:
        """Add pasted text to the filter."""
        before, self.state = self.state, typed(self.state, event.text)
        self._after(before, None)

    def on_click(self, event: events.Click) -> None:
        """Choose the job in the row that was clicked, open the page of the chosen job, or carry out
        the effect of a key that is named in the last line.
        """
        before, wish = self.state, None
        key = self._drawn.key_at(event.x, event.y)
        if (number := self._drawn.jobs.get(event.y)) is not None:
            page = JOB if number == before.chosen else before.page
            self.state = replace(before, chosen=number, page=page)
        elif key is not None:
            self.state, wish = press(before, key, None, self._shown())
        self._after(before, wish)

    def on_mouse_scroll_down(self) -> None:
        """Choose the next job, or scroll down, as the key `down` does."""
        self._scroll("down")

    def on_mouse_scroll_up(self) -> None:
        """Choose the previous job, or scroll up, as the key `up` does."""
        self._scroll("up")

    def _scroll(self, key: str) -> None:
        before = self.state
        if not before.question and not before.typed:
            self.state, _ = press(before, key, None, self._shown())
            self._after(before, None)

    def _after(self, before: ViewState, wish: UserAction | None) -> None:
        """Draw the screen after a key or click has changed the state, and carry out the requested
        action.

        `before` is the state before the key or click.
        """
        if self.data is not None and (self.state.only, self.state.order) != (
            before.only,
            before.order,
        ):
            listed = self.state.listed(self.data.jobs)
            self.state = self.state.keep_chosen(listed, before.listed(self.data.jobs))
        if wish is not None:
            self._grant(wish)
        if (self.state.page, self.state.rank) != (before.page, before.rank):
            self._rank_log = None if self.state.page != LOG else self._rank_log
            self.read_log()
        self.draw()
        if self.state.chosen != before.chosen or before.page == LOG != self.state.page:
            self.refresh_now()

    def _shown(self) -> KeyContext:
        return KeyContext(
            listed=() if self.data is None else self.state.listed(self.data.jobs),
            job_rows=self._drawn.job_rows,
            log_lines=0 if self._rank_log is None else len(shown_log(self._rank_log, self.state)),
            log_rows=max(1, self._canvas.size.height - 2),
        )

    def read_log(self) -> None:
        """Start to read new lines of the log, if the page of a log is shown."""
        job = chosen_of(self.state, self._shown())
        if self.state.page == LOG and job is not None and self._reading.is_idle:
            reads = partial(self._reads.log, job, self.state.rank)
            self._reading.do(reads, self._show_log, self._refused_log)

    def _show_log(self, log: LogLines) -> None:
        if self.state.page != LOG or (log.job_id, log.rank) != (self.state.chosen, self.state.rank):
            return
        dropped = 0 if self._rank_log is None else log.dropped - self._rank_log.dropped
        if self.state.top is not None and dropped > 0:
            self.state = replace(self.state, top=max(0, self.state.top - dropped))
        self._rank_log = log
        self.draw()

    def _refused_log(self, error: Exception) -> None:
        if not isinstance(error, ZerotoolsError):
            self._fail(error)
        elif self.state.page == LOG and self.state.chosen is not None:
            said = LogLines(self.state.chosen, self.state.rank, "log", (str(error),))
            self._rank_log = self._rank_log or said
            self.draw()

    def _grant(self, wish: UserAction) -> None:
        if wish.what == QUIT or wish.job is None:
            self.exit(0)
            return
        number, name = wish.job["id"], title(wish.job)
        wanted = int(wish.job["priority"] or 0) + wish.change
        saved = " after it has saved" if wish.job["state"] in ACTIVE else ""
        asks: dict[str, tuple[Callable[[], object], str]] = {
            CANCEL: (partial(self._client.cancel, number), f"{name} is stopping"),
            HOLD: (partial(self._client.hold, number), f"{name} is held{saved}"),
            RESUME: (partial(self._continue_job, wish.job), f"{name} continues"),
            PRIORITY: (
                partial(self._client.set_priority, number, wanted),
                f"{name} has priority {wanted}",
            ),
        }
        self._send_request(*asks[wish.what])

    def _continue_job(self, job: Job) -> object:
        if job["state"] in TERMINAL:
            return self._client.retry(int(job["id"]), from_start=False)
        return self._client.release(int(job["id"]))

    def _send_request(self, asks: Callable[[], object], done: str) -> None:
        def answered(_: object) -> None:
            self.show_message(done, "good")
            self.refresh_now()

        def refused(error: Exception) -> None:
            if isinstance(error, ZerotoolsError):
                self.show_message(str(error), "bad")
            else:
                self._fail(error)

        self._asking.do(asks, answered, refused)

    def show_message(self, text: str, meaning: str) -> None:
        """Show a text in the last line for some seconds."""
        self._message_until = time.monotonic() + SAID_SECONDS
        self.state = replace(self.state, message=(render.clean(text), meaning))
        self.draw()

    def _redraw_after_suspend(self, _: App[int]) -> None:
        """Draw all lines again when the program continues after Ctrl-Z and `fg`, because the screen
        is empty then.
        """
        self._canvas.refresh()

    def action_interrupt(self) -> None:
        """On Ctrl-C, end with the same exit status as the other commands do."""
        self.exit(EXIT_INTERRUPTED)

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self.exit(1)

    def _handle_exception(self, error: Exception) -> None:
        """Keep the error, which is reported later in one sentence. Textual itself would print a
        traceback with all local variables.
        """
        self.failure = self.failure or error
        super()._handle_exception(error)
        self._exit_renderables.clear()
