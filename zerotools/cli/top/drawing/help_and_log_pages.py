"""The pages that fill the whole screen: the help on keys, and a log."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

from zerotools.cli.top.drawing.styled_lines import OWNER_MARKS, Line, cut, plain, ruled
from zerotools.cli.top.reading.gpu_holders import JOB, RESIDUE, STRANGER

_WRONG = re.compile(r"\b(?:warning|warn|error|fatal|traceback|\w+(?:Error|Exception))\b", re.I)
KEYS = (
    ("↑ ↓  j k", "choose a job; also PgUp PgDn Home End"),
    ("Enter", "show its page; Enter again goes back"),
    ("l", "follow its log; / shows only the lines with some words"),
    ("e", "show only the errors and warnings in its log"),
    ("p", "hold it (asks for y): it saves and stops"),
    ("c", "cancel it (asks for y)"),
    ("r", "release it if it is held; retry it if it has ended"),
    ("+ -", "change its priority"),
    ("s", "sort by state, id, owner, name, time left"),
    ("/", "show only jobs with these words, without -words; Escape shows all"),
    ("?", "this page"),
    ("q", "quit"),
)
MARKS = (
    (JOB, "memory of jobs"),
    (STRANGER, "of other processes"),
    (RESIDUE, "left by a dead process"),
    ("free", "free"),
)
NOTES = (
    "▼ shows why a GPU's clocks are slow: power is usual under load, hot is not.",
    "XID is the last error of the driver; ECC counts memory errors.",
    "PSI is the share of 10 s in which a task waited for memory, CPU or disk.",
    "✓ marks a verified checkpoint, ? an unverified one.",
)


def help_lines(columns: int) -> list[Line]:
    """Return the lines of the help page: the keys, and the meaning of marks."""
    lines: list[Line] = [ruled([("keys", "strong")], columns)]
    lines += [[(f"  {key:<10}", "key"), (words, "")] for key, words in KEYS]
    lines += [[], ruled([("marks", "strong")], columns)]
    lines += [[(f"  {OWNER_MARKS[kind] * 4}      ", kind), (words, "")] for kind, words in MARKS]
    lines += [[(f"  {note}", "quiet")] for note in NOTES]
    return [cut(line, columns) for line in lines]


FOLLOWING = 2
"""The number of lines that are shown after a line with an error."""


def error_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of a log that report an error or a warning, each with the next few lines."""
    kept: dict[int, None] = {}
    for number, line in enumerate(lines):
        if log_meaning(line):
            kept |= dict.fromkeys(range(number, min(number + FOLLOWING + 1, len(lines))))
    return tuple(lines[number] for number in kept)


def log_page(
    title: str,
    lines: Sequence[str],
    top: int | None,
    columns: int,
    rows: int,
    nothing: str = "this log is still empty",
) -> list[Line]:
    """Return the lines of a page of a log. The page begins with line `top` of the log. If `top` is
    None, the page shows the end of the log. If the log is empty, the page shows the text `nothing`.
    """
    room = max(1, rows - 1)
    where = "follows" if top is None else f"line {top + 1} of {len(lines)}"
    head = ruled([(plain(title), "strong")], columns, [(where, "quiet")])
    folded: list[str] = []
    if top is None:
        for line in reversed(lines):
            folded = [*fold(line, columns), *folded]
            if len(folded) >= room:
                break
        folded = folded[-room:]
    else:
        for line in lines[top:]:
            folded += fold(line, columns)
            if len(folded) >= room:
                break
        folded = folded[:room]
    if not folded:
        return [head, [(nothing, "quiet")]]
    return [head, *([(text, log_meaning(text))] for text in folded)]


def log_meaning(text: str) -> str:
    """Return the style of a log line: `warning` or `bad` if the line reports a warning or an
    error.
    """
    found = _WRONG.search(text)
    return "" if found is None else "warning" if found[0].lower().startswith("warn") else "bad"


def fold(text: str, columns: int) -> list[str]:
    """Cut a line of a log into lines of at most `columns` columns. A line ends after a space if
    there is one in its second half.
    """
    rest, found = plain(text), []
    while cell_len(rest) > columns:
        part = set_cell_size(rest, columns)
        kept = part if rest.startswith(part) else part[:-1]  # half of a wide character does not fit
        if not kept:
            break
        end = kept.rfind(" ") + 1
        if rest[len(kept)] != " " and end > len(kept) // 2:
            kept = kept[:end]
        found.append(kept)
        rest = rest[len(kept) :]
    return [*found, rest]
