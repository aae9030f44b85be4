"""The screen of `zerotools top`, in textual: it draws `screen_rows`, and asks the daemon."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from zerotools.cli.job_views.describe import Job, title, user_of
from zerotools.cli.output import render
from zerotools.cli.top.looking import Look
from zerotools.cli.top.screen_rows import (
    JOB_COLUMNS,
    STYLES,
    Line,
    detail_lines,
    gpu_lines,
    host_line,
    job_cells,
    past_of,
)
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.client.daemon_client import DaemonClient

ANSWERS = "none is running"
SORTS = ("id", "state", "owner")
HELP = """up, down  choose a job        l  its log, the last lines
c  cancel it (asks)           r  resume it
+ -  its priority             s  sort by id, state, owner
/  filter by name or owner    q  quit

A bar is a GPU's memory: █ jobs, ▓ other processes, ▚ memory that nobody holds, ░ free.
Escape closes this."""


def text_of(lines: Sequence[Line]) -> Text:
    """Lines with their styles."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for number, line in enumerate(lines):
        text.append("\n" if number else "")
        for piece, meaning in line:
            text.append(piece, STYLES.get(meaning, ""))
    return text


class Page(ModalScreen[bool]):
    """A text above the screen; `y` says yes where it asks."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,n", "answer(False)", "close"),
        Binding("y", "answer(True)", "yes", show=False),
    ]
    CSS = "Page { align: center middle; } Page VerticalScroll { border: round; height: auto; "
    CSS += "max-height: 90%; width: 90%; }"

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(Text(self._text))

    def action_answer(self, yes: bool) -> None:
        """Close, with the answer."""
        self.dismiss(yes)


class Top(App[None]):
    """GPUs, host, jobs, and the job that is selected. `read` makes a `Look`, beside the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("l", "logs", "log"),
        Binding("c", "cancel", "cancel"),
        Binding("r", "resume", "resume"),
        Binding("plus", "priority(1)", "+", show=False),
        Binding("minus", "priority(-1)", "-", show=False),
        Binding("s", "sort", "sort"),
        Binding("slash", "filter", "filter"),
        Binding("question_mark", "help", "help"),
    ]
    CSS = """
    #gpus, #host, #said { height: auto; }
    #jobs { height: 1fr; min-height: 3; }
    #details { height: auto; max-height: 40%; }
    #filter { display: none; height: 1; border: none; }
    """
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, read: Callable[[int | None], Look], client: DaemonClient, interval: float
    ) -> None:
        super().__init__()
        self._read = read
        self._client = client
        self._interval = interval
        self._look: Look | None = None
        self._sort = 0
        self._only = ""
        # The terminal's own colours; textual makes black of them where it is to have none.
        self.theme = "textual-dark" if os.environ.get("NO_COLOR") else "ansi-dark"

    def compose(self) -> ComposeResult:
        yield Static(id="gpus")
        yield Static(id="host")
        yield Input(placeholder="name or owner, Enter", id="filter")
        table: DataTable[Text] = DataTable(id="jobs", cursor_type="row", zebra_stripes=False)
        table.add_columns(*JOB_COLUMNS)
        yield table
        yield Static(id="details")
        yield Static(id="said")
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Read at once, and then again and again."""
        self.query_one(DataTable).focus()
        self.set_interval(self._interval, self.refresh_now)
        self.refresh_now()

    def refresh_now(self) -> None:
        """Begin a reading, where none is under way."""
        if not any(worker.is_running for worker in self.workers):
            selected = self.selected
            self.run_worker(
                partial(self._read_beside, None if selected is None else selected["id"]),
                thread=True,
            )

    def _read_beside(self, selected: int | None) -> None:
        look = self._read(selected)
        self.call_from_thread(self.show, look)

    @property
    def selected(self) -> Job | None:
        """The job under the cursor."""
        jobs = self.jobs
        row = self.query_one(DataTable).cursor_row
        return jobs[row] if 0 <= row < len(jobs) else None

    @property
    def jobs(self) -> list[Job]:
        """Those that are listed, in their order."""
        jobs = [] if self._look is None else list(self._look.view.jobs)
        found = [
            job
            for job in jobs
            if self._only in str(job["name"] or "") or self._only in user_of(job)
        ]
        keys: Sequence[Callable[[Job], Any]] = (
            lambda job: job["id"],
            lambda job: (job["state"], job["id"]),
            lambda job: (user_of(job), job["id"]),
        )
        return sorted(found, key=keys[self._sort])

    def show(self, look: Look) -> None:
        """Draw what was read."""
        chosen = self.selected
        self._look = look
        columns = self.size.width
        self.query_one("#gpus", Static).update(text_of(gpu_lines(look, columns)))
        host = look.view.snapshot.host
        past = past_of(look, "host.memory_used_bytes", self.size.width, host.memory_total_bytes)
        self.query_one("#host", Static).update(text_of([host_line(host, past)]))
        self._fill(None if chosen is None else chosen["id"])
        self._draw_details()

    def _fill(self, chosen: int | None) -> None:
        table = self.query_one(DataTable)
        jobs = self.jobs
        table.clear()
        for job in jobs:
            cells = [Text(text, STYLES.get(meaning, "")) for text, meaning in job_cells(job)]
            table.add_row(*cells, key=str(job["id"]))
        numbers = [job["id"] for job in jobs]
        if chosen in numbers:
            table.move_cursor(row=numbers.index(chosen))
        said = "" if self._look is None else self._look.view.daemon
        said = "" if jobs and said == ANSWERS else said
        self.query_one("#said", Static).update(Text(f"jobs: {render.clean(said)}" if said else ""))

    def _draw_details(self) -> None:
        details = None if self._look is None else self._look.chosen
        room = max(2, int(self.size.height * 0.4) - 1)
        lines = detail_lines(self.selected, details, self.size.width, room)
        self.query_one("#details", Static).update(text_of(lines))

    def on_data_table_row_highlighted(self) -> None:
        """Another job is selected."""
        if self._look is not None:
            self._draw_details()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The filter was entered."""
        self._only = event.value.strip()
        self.query_one("#filter").display = False
        self.query_one(DataTable).focus()
        self._fill(None)

    def action_filter(self) -> None:
        """Ask for a name or owner."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._sort = (self._sort + 1) % len(SORTS)
        chosen = self.selected
        self._fill(None if chosen is None else chosen["id"])
        self.notify(f"sorted by {SORTS[self._sort]}")

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Page(HELP))

    def action_logs(self) -> None:
        """Show the end of the log."""
        details = None if self._look is None else self._look.chosen
        lines = () if details is None else details.log
        self.push_screen(Page("\n".join(lines) or "there is no log yet"))

    def action_cancel(self) -> None:
        """Cancel the job, if that is confirmed."""
        job = self.selected
        if job is not None:
            ask = Page(f"Cancel {title(job)}? It saves first where it can.\n\ny  yes    n  no")
            self.push_screen(ask, lambda yes: self._ask(job, "cancel") if yes else None)

    def action_resume(self) -> None:
        """Resume the job."""
        if self.selected is not None:
            self._ask(self.selected, "resume")

    def action_priority(self, change: int) -> None:
        """Raise or lower its priority."""
        job = self.selected
        if job is not None:
            self._ask(job, "set_priority", int(job["priority"]) + change)

    def _ask(self, job: Job, method: str, *values: int) -> None:
        self.run_worker(partial(self._asked, job, method, *values), thread=True)

    def _asked(self, job: Job, method: str, *values: int) -> None:
        try:
            getattr(self._client, method)(job["id"], *values)
            said = f"{method.replace('_', ' ')}: {title(job)}"
            self.call_from_thread(self.notify, said, markup=False)
        except ZerotoolsError as error:
            said = render.clean(str(error))
            self.call_from_thread(self.notify, said, severity="error", markup=False)
