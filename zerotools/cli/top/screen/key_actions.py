"""The effect of a key on the view, as functions without input or output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zerotools.cli.job_views.describe_job import Job, how_it_stops, title
from zerotools.cli.top.drawing.view_state import HELP, JOB, JOBS, LOG, ORDERS, ViewState
from zerotools.jobs.states import VERB_ROWS, predicate

QUIT, CANCEL, HOLD, RESUME, PRIORITY = "quit", "cancel", "hold", "resume", "priority"
LONGEST_FILTER = 60
NO_JOB = ("no job is chosen", "warning")


@dataclass(frozen=True)
class UserAction:
    """An action that the user requests: for a job, or to quit. `change` is the requested change of
    the job's priority.
    """

    what: str
    job: Job | None = None
    change: int = 0


@dataclass(frozen=True)
class KeyContext:
    """The parts of the screen that may change the effect of a key: the listed jobs, the rows of
    their table, the lines of the log, and the rows of the log page.
    """

    listed: Sequence[Job] = ()
    job_rows: int = 1
    log_lines: int = 0
    log_rows: int = 1


Pressed = tuple[ViewState, UserAction | None]


def press(state: ViewState, key: str, character: str | None, shown: KeyContext) -> Pressed:
    """Return the state after the key `key` was pressed, and the action that the key requests. The
    action is None if the key only changes the state.

    `key` is textual's name of the key, and `character` is the typed character.
    """
    if state.typed:
        return _typing(state, key, character), None
    state = replace(state, message=("", ""))
    if state.question:
        return _answered(state, key, shown)
    if state.page == HELP:
        closes = key in ("escape", "q", "question_mark", "enter")
        return (replace(state, page=state.back, back=JOBS) if closes else state), None
    if state.page == LOG:
        return _in_log(state, key, shown), None
    return _among_jobs(state, key, shown)


def typed(state: ViewState, text: str) -> ViewState:
    """Return the state with `text` added to the filter, if the user is typing the filter now."""
    new = "".join(each for each in text if each.isprintable())
    return _filtered(state, (_filter_of(state) + new)[:LONGEST_FILTER]) if state.typed else state


def _filter_of(state: ViewState) -> str:
    """Return the filter of the page, which selects jobs or the lines of a log."""
    return state.find if state.page == LOG else state.only


def _filtered(state: ViewState, words: str) -> ViewState:
    """Return the state with `words` as the filter of the page. The page of a log then shows its
    end."""
    if state.page == LOG:
        return replace(state, find=words, top=None)
    return replace(state, only=words)


def chosen_of(state: ViewState, shown: KeyContext) -> Job | None:
    """Return the job under the cursor; None if no job is listed."""
    return next((job for job in shown.listed if job["id"] == state.chosen), None)


def _typing(state: ViewState, key: str, character: str | None) -> ViewState:
    match key:
        case "enter":
            return replace(state, typed=False)
        case "escape":
            return replace(_filtered(state, ""), typed=False)
        case "backspace":
            return _filtered(state, _filter_of(state)[:-1])
        case "ctrl+u":
            return _filtered(state, "")
    return typed(state, character or "")


def _answered(state: ViewState, key: str, shown: KeyContext) -> Pressed:
    """Return the state after the user has answered a question. Only the key `y` means yes."""
    job = next((job for job in shown.listed if job["id"] == state.asked), None)
    wish = UserAction(state.wish, job) if key in ("y", "Y") and job is not None else None
    return replace(state, question="", asked=None, wish=""), wish


def _in_log(state: ViewState, key: str, shown: KeyContext) -> ViewState:
    page, last = max(1, shown.log_rows - 2), max(0, shown.log_lines - shown.log_rows + 1)
    top = last if state.top is None else state.top
    match key:
        case "escape" if state.find:
            return _filtered(state, "")
        case "escape" | "q" | "l":
            return replace(state, page=state.back, back=JOBS, top=None, errors=False, find="")
        case "slash":
            return replace(state, typed=True)
        case "e":
            return replace(state, top=None, errors=not state.errors)
        case "up" | "k":
            return replace(state, top=max(0, top - 1))
        case "pageup" | "b":
            return replace(state, top=max(0, top - page))
        case "home" | "g":
            return replace(state, top=0)
        case "down" | "j":
            return replace(state, top=_or_end(top + 1, last))
        case "pagedown" | "space":
            return replace(state, top=_or_end(top + page, last))
        case "end" | "G" | "f":
            return replace(state, top=None)
        case "right" | "left":
            return _other_rank(state, 1 if key == "right" else -1, shown)
    return state


def _or_end(top: int, last: int) -> int | None:
    """Return `top`. If this line is at the end of the log, return None: the page then stays at the
    end as the log grows."""
    return None if top >= last else top


def _other_rank(state: ViewState, by: int, shown: KeyContext) -> ViewState:
    job = chosen_of(state, shown)
    ranks = 1 if job is None else max([1, *(job.get("sizes") or (int(job["world_size"] or 1),))])
    return replace(state, rank=(state.rank + by) % ranks, top=None)


def _among_jobs(state: ViewState, key: str, shown: KeyContext) -> Pressed:
    moves = {
        "up": -1,
        "k": -1,
        "down": 1,
        "j": 1,
        "home": -len(shown.listed),
        "g": -len(shown.listed),
    }
    moves |= {"pageup": -shown.job_rows, "pagedown": shown.job_rows}
    moves |= {"end": len(shown.listed), "G": len(shown.listed)}
    if key in moves:
        return state.moved(shown.listed, moves[key]), None
    if state.page == JOB and key in ("q", "escape", "enter"):
        return replace(state, page=JOBS), None
    match key:
        case "q":
            return state, UserAction(QUIT)
        case "question_mark" | "h":
            return replace(state, page=HELP, back=state.page), None
        case "s":
            return replace(state, order=(state.order + 1) % len(ORDERS)), None
        case "slash":
            return replace(state, typed=True), None
        case "escape":
            return replace(state, only=""), None
    return _about_job(state, key, chosen_of(state, shown))


def _about_job(state: ViewState, key: str, job: Job | None) -> Pressed:
    """Return the effect of a key on the chosen job."""
    if key not in ("l", "e", "enter", "c", "p", "r", "plus", "minus"):
        return state, None
    if job is None:
        return replace(state, message=NO_JOB), None
    match key:
        case "enter":
            return replace(state, page=JOB), None
        case "c":
            asks = f"Cancel {title(job)}? It {how_it_stops(job)}."
            return replace(state, question=asks, asked=job["id"], wish=CANCEL), None
        case "p":
            return _hold(state, job)
        case "r":
            return state, UserAction(RESUME, job)
        case "plus" | "minus":
            return state, UserAction(PRIORITY, job, 1 if key == "plus" else -1)
    return replace(
        state, page=LOG, back=state.page, top=None, rank=0, errors=key == "e", find=""
    ), None


def _hold(state: ViewState, job: Job) -> Pressed:
    """Ask whether to hold the job. The question says what a hold does to a job in this state."""
    effect = next(row.hold for row in VERB_ROWS if job["state"] in row.states)
    if effect.startswith(("refused", "nothing")):
        refused = f"{title(job)} {predicate(job['state'])}, so it cannot be held"
        return replace(state, message=(refused, "warning")), None
    return replace(
        state, question=f"Hold {title(job)}? Then {effect}.", asked=job["id"], wish=HOLD
    ), None


BEGINS = ("right_square_bracket", "1", "1", "semicolon")
"""The keys with which a terminal's response begins. None of them has a meaning in `top`."""
ENDS = ("backslash", "ctrl+g")
LONGEST = 40
"""At most this many keys are read as one response. A complete response has at most 28 keys. So if a
response has no end, only a few keys of the user are lost.
"""


class LateResponses:
    r"""Distinguishes pressed keys from a response of the terminal that comes late, over a slow line
    or from a busy machine.

    textual waits for the response only for a short time. After that, it reads the characters of the
    response as keys. The ESC is lost, or is read as ^:

        ESC ] 11;rgb:0000/0000/0000 ESC \   a response (xterm, "Operating System Commands")
        ^ ] 1 1 ; r g b : 0 0 0 0 / ... \   the keys: r would resume a job, / begin a filter
    """

    def __init__(self) -> None:
        self._matched = 0
        self._remaining = 0

    def consumes(self, key: str) -> bool:
        """Return whether this key, by textual's name, is part of a response. The first three keys
        of a response return False, because they have no effect in `top`. Call it once for each key,
        in order."""
        if self._remaining:
            self._remaining = 0 if key in ENDS else self._remaining - 1
            return True
        if key != BEGINS[self._matched]:
            self._matched = int(key == BEGINS[0])
            return False
        self._matched += 1
        if self._matched == len(BEGINS):
            self._matched, self._remaining = 0, LONGEST
            return True
        return False
