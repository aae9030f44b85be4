"""Formats the output of commands: tables, sizes, durations, JSON.

Text from a file, a job or the daemon goes through `clean`: a control character in the name of a job
must not move the cursor of the terminal.
"""

from __future__ import annotations

import json
import re
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TextIO

import click

from zerotools.cli.command_table import COMMANDS, OLD_NAMES
from zerotools.core.counts_and_sizes import count_text

if TYPE_CHECKING:
    from zerotools.core.checkpoint import Origin


UNKNOWN = "-"
_LEAST_INDENT = 4
_BETWEEN_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
NARROWEST_TEXT = 30
"""A text is not folded to fewer columns than this."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# C0, DEL, C1, the marks that reorder text, those that break lines, and those that show nothing.
_CONTROL = (
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_NO_COLUMN = frozenset(("Mn", "Me", "Cf"))
"""Unicode categories of characters that take no column on a terminal."""


def clean(text: str) -> str:
    """Return `text` on one line, with every control character as an escape sequence."""
    if text.isprintable():
        return text
    return re.sub(_CONTROL, lambda found: found[0].encode("unicode_escape").decode(), text)


def size(count: int | float | None) -> str:
    """Return a number of bytes as text: `980 B`, `61.2 GiB`; `-` for None."""
    if count is None:
        return UNKNOWN
    value, unit = float(count), 0
    while abs(value) >= 1023.95 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def gib(count: int | float | None) -> str:
    """Return bytes as GiB without the unit, for a column with the unit in its header; `-` for
    None.
    """
    return UNKNOWN if count is None else f"{count / 2**30:.1f}"


def duration(seconds: float | None) -> str:
    """Return seconds as text with at most two units: `8 s`, `3 min 20 s`, `2 h 05 min`, `4 d 03 h`;
    `-` for None.
    """
    if seconds is None:
        return UNKNOWN
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def age(seconds: float) -> str:
    """Return a duration in its largest unit: `41s`, `19m`, `4h`, `3d`."""
    whole = max(0, round(seconds))
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= length:
            return f"{whole // length}{unit}"
    return f"{whole}s"


def moment(unix_seconds: float | None) -> str:
    """Return date and time in the local zone; `-` for None."""
    if unix_seconds is None:
        return UNKNOWN
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_seconds))


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with `digits` significant digits; `-` for None."""
    return UNKNOWN if value is None else f"{value:.{digits}g}"


def loss(value: float) -> str:
    """Return a loss with four decimals, or in scientific notation if it is a million or more."""
    most = sys.float_info.max  # a whole number in JSON may be larger
    return f"{value:.4f}" if abs(value) < 1e6 else f"{max(-most, min(value, most)):.3e}"


def origin(read: Origin) -> str:
    """Return the path of a checkpoint with its format, its ZeRO stage, its ranks and its step."""
    facts = [read.title or read.format]
    if read.stage is not None:
        facts.append(f"stage {read.stage}")
    if read.world_size is not None:
        facts.append(count_text(read.world_size, "rank"))
    if read.step is not None:
        facts.append(f"step {read.step}")
    return f"{read.path} ({', '.join(facts)})"


def page_line(page: Path) -> str:
    """Return the line that reports a written HTML page."""
    return f"page: {page} ({size(page.stat().st_size)}); open it in a browser"


def width(text: str) -> int:
    """Return the number of columns that `text` takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.category(c) in _NO_COLUMN
        else 2
        if unicodedata.east_asian_width(c) in "WF"
        else 1
        for c in text
    )


def shorten(text: str, columns: int) -> str:
    """Return `text` in at most `columns` columns, with an ellipsis if it was cut."""
    if width(text) <= columns:
        return text
    kept = ""
    for character in text:
        if width(kept + character) > columns - 1:
            break
        kept += character
    return kept + "…"


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[str] = (),
    columns: int | None = None,
    indent: int = 0,
    paint: Mapping[str, Callable[[str], str]] = MappingProxyType({}),
) -> list[str]:
    """Return the lines of a table with two spaces between its columns. The columns named in `right`
    are right-aligned.

    Control characters in cells are escaped. If `columns` (the width of the terminal) is given, the
    last column is shortened to fit. `paint` maps the header of a column to the function that
    colours its padded cells.
    """
    cells = [list(headers), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(width(cell) for cell in column) for column in zip(*cells, strict=True)]
    if columns is not None:
        left = columns - indent - sum(widths[:-1]) - 2 * (len(widths) - 1)
        widths[-1] = max(min(widths[-1], left), 12)
    lines = []
    for number, row in enumerate(cells):
        row[-1] = shorten(row[-1], widths[-1])
        padded = [
            " " * (w - width(cell)) + cell if name in right else cell + " " * (w - width(cell))
            for name, cell, w in zip(headers, row, widths, strict=True)
        ]
        if number:
            padded = [
                paint[name](cell) if name in paint else cell
                for name, cell in zip(headers, padded, strict=True)
            ]
        lines.append((" " * indent + "  ".join(padded)).rstrip())
    return lines


def table_and_remarks(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[str] = (),
    columns: int | None = None,
    paint: Mapping[str, Callable[[str], str]] = MappingProxyType({}),
) -> list[str]:
    """Return the lines of a table with sentences in its last column. If the table is wider than
    `columns`, the sentences are on separate lines below their rows.
    """
    plain = table(headers, rows, right=right)
    if columns is None or all(width(line) <= columns for line in plain):
        return table(headers, rows, right=right, paint=paint)
    import textwrap  # 1 ms at each start

    header, *short = table(headers[:-1], [row[:-1] for row in rows], right=right, paint=paint)
    lines = [header]
    for line, row in zip(short, rows, strict=True):
        lines.append(line)
        blank = " " * _LEAST_INDENT
        lines += textwrap.wrap(
            clean(row[-1]),
            columns - 1,
            initial_indent=blank,
            subsequent_indent=blank,
            **_BETWEEN_WORDS,
        )
    return lines


def fields(
    pairs: Iterable[tuple[str, str]], *, indent: int = 0, columns: int | None = None
) -> list[str]:
    """Return lines `name  value` with aligned values. A pair with an empty value is left out.

    If `columns` (the width of the terminal) is given, longer values continue on the next lines,
    indented.
    """
    shown = [(name, clean(value)) for name, value in pairs if value]
    column = max((width(name) for name, _ in shown), default=0)
    lines = []
    for name, value in shown:
        line = f"{' ' * indent}{name.ljust(column)}  {value}"
        lines += folded(line, columns, indent + column + 2)
    return lines


def folded(line: str, columns: int | None, indent: int) -> list[str]:
    """Return `line` as lines of at most `columns` columns, which end between words. All lines
    except the first are indented by `indent`.

    A word that is longer than a line stays whole, because users copy paths from the terminal. The
    lines are indented less if a word fits only then, or if few columns are left. If `columns` is
    None or very small, the line is returned unchanged.
    """
    if columns is None or width(line) <= columns or columns - _LEAST_INDENT < NARROWEST_TEXT:
        return [line]
    if columns - indent < NARROWEST_TEXT:
        indent = min(indent, _LEAST_INDENT)
    import textwrap  # 1 ms at each start

    longest = max(map(width, line.split()), default=0)
    if columns - indent < longest <= columns - _LEAST_INDENT:
        indent = min(indent, _LEAST_INDENT)
    return textwrap.wrap(line, columns, subsequent_indent=" " * indent, **_BETWEEN_WORDS)


def terminal_columns(stream: TextIO | None = None) -> int | None:
    """Return the width of the terminal that `stream` (default: stdout) writes to; None if the
    stream is not a terminal.
    """
    if not (stream or sys.stdout).isatty():
        return None
    import shutil  # 2 ms at each start

    return shutil.get_terminal_size().columns


def print_lines(lines: Iterable[str]) -> None:
    """Write `lines` to stdout."""
    sys.stdout.write("".join(line + "\n" for line in lines))


def print_json(tree: Mapping[str, Any]) -> None:
    """Print `tree` as the JSON object of the command, with its schema as the first key.

    The object is printed when the command ends, also after an error. If there are several calls,
    the last one counts.
    """
    import click  # the daemon prints errors too, without click

    context = click.get_current_context()
    open_in(context).set(enveloped(tree, context))


def print_json_line(tree: Mapping[str, Any]) -> None:
    """Print `tree` at once as one line of JSON, with the schema of the command as the first key."""
    import click

    line = enveloped(tree, click.get_current_context())
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def spans(numbers: Sequence[int]) -> str:
    """Return ascending numbers as ranges: `0-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in runs) or UNKNOWN


# The JSON that a command prints on stdout: one object, with its schema first.
#
#     {"schema": "zerotools.cancel/1", "jobs": [...], "errors": [...]}
#
# `render.print_json` sets the object. It is printed at the end of the command, so that `errors` has
# all errors. A command that only has errors prints `zerotools.error/1`. Commands that print while
# they run use `render.print_json_line`. docs/reference/json.md describes the objects.

ERROR_SCHEMA = "zerotools.error/1"
_KEY = "zerotools.json_answer"


class JsonAnswer:
    """The JSON output of one command. `errors` has the results of `Failure.to_json()`."""

    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []
        self.is_requested = False
        self._text: str | None = None

    def set(self, tree: Mapping[str, Any]) -> None:
        """Set the object that is printed at the end of the command. `tree` includes its schema."""
        self.is_requested = True
        self._text = json.dumps(tree, indent=2)

    def write(self) -> None:
        """Print the object. If no object was set, print the errors on one line, because the output
        of the command may be JSON Lines."""
        if self._text is not None:
            if self.errors:
                last_key = json.dumps({"errors": self.errors}, indent=2).removeprefix("{")
                self._text = self._text.removesuffix("\n}") + "," + last_key
            sys.stdout.write(self._text + "\n")
        elif self.errors and self.is_requested:
            sys.stdout.write(json.dumps({"schema": ERROR_SCHEMA, "errors": self.errors}) + "\n")


def is_requested(arguments: Sequence[str]) -> bool:
    """Return whether the arguments contain `--json`. This also works if click cannot parse them."""
    words = list(arguments)
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def open_in(context: click.Context) -> JsonAnswer:
    """Return the JSON answer of a command line. It is printed when `context` is closed."""
    root = context.find_root()
    if _KEY not in root.meta:
        root.meta[_KEY] = answer = JsonAnswer()
        root.call_on_close(answer.write)
    found = root.meta[_KEY]
    assert isinstance(found, JsonAnswer)
    return found


def current() -> JsonAnswer | None:
    """Return the JSON answer of the current command; None outside of a command."""
    context = click.get_current_context(silent=True)
    return None if context is None else open_in(context)


def enveloped(tree: Mapping[str, Any], context: click.Context) -> dict[str, Any]:
    """Return `tree` with the key `schema` added as its first key, for the current command."""
    called = context.info_name
    name = called if called in OLD_NAMES else context.command.name
    assert name is not None
    schema = schema_of(name)
    assert tree.get("schema", schema) == schema, f"zerotools {name} prints {tree['schema']}"
    return {"schema": schema, **tree}


def schema_of(name: str) -> str:
    """Return the name of the schema of a command's JSON: `zerotools.cancel/1`."""
    return f"zerotools.{name}/{COMMANDS[name].json_version if name in COMMANDS else 1}"
