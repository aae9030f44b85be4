"""A row for each GPU, and for each process that holds GPU memory.

The bar of a GPU is split by the owners of the memory (`OWNER_MARKS`):

    0 ▇▇▇▇▇▇▓▓╌╌╌╌╌╌  61.2/80G ▇ 98%  61° 402/700W 1755MHz  job 3 (tiny)

▇ a job    ▓ another process    ▚ memory without a process    ╌ free
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerotools.cli.job_views.describe_job import title
from zerotools.cli.job_views.machine_screen import CALM
from zerotools.cli.output import render
from zerotools.cli.output.text_charts import area
from zerotools.cli.top.drawing import short_numbers
from zerotools.cli.top.drawing.short_numbers import in_ranges
from zerotools.cli.top.drawing.styled_lines import (
    Line,
    Piece,
    cut,
    filled,
    level,
    memory_bar,
    meter,
    padded,
    plain,
    strip,
    warmth,
)
from zerotools.cli.top.reading.gpu_holders import JOB, GpuHolder, GpuShare
from zerotools.cli.top.reading.read_screen_values import ScreenData
from zerotools.sensors.snapshot import Gpu

WARM_CELSIUS, HOT_CELSIUS = 80, 88
FULL_SHARE, OVERFULL_SHARE = 0.96, 0.99
"""At these used fractions of a GPU's memory, its colour becomes that of a warning, or of an alarm.
"""
ROOMY = 100
"""Screens with fewer columns show neither the past of GPUs nor their usual states."""
NAMED = 130
"""Screens with fewer columns leave out the names of GPUs if all GPUs are of one kind."""
SHORT = {
    "power limit": "power",
    "temperature": "hot",
    "temperature (hardware)": "HOT",
    "hardware slowdown": "slowed",
    "power brake": "brake",
    "clocks set by hand": "set",
    "sync boost": "sync",
    "display clocks": "display",
    "board limit": "board",
    "reliability": "voltage",
}


@dataclass(frozen=True)
class GpuColumns:
    """The widths of the columns of the GPU rows. A column of width 0 is left out."""

    name: int
    bar: int
    busy_bar: int
    limit: bool
    clock: int
    past: int

    @classmethod
    def of(cls, columns: int, *, is_mixed: bool = False) -> GpuColumns:
        """Return the widths for a screen of `columns` columns. `is_mixed` is true if the GPUs are
        of several kinds.

        A wider screen has more columns of the table. The memory bar and the owner share the
        remaining space.
        """
        name = 16 if columns >= (ROOMY if is_mixed else NAMED) else 0
        busy_bar = 12 if columns >= 150 else 0
        past = 20 if columns >= 180 else 12 if columns >= 130 else 8 if columns >= ROOMY else 0
        limit, clock = columns >= 76, 9 if columns >= 70 else 0
        fixed = 3 + name + 11 + 7 + busy_bar + 6 + (9 if limit else 5) + clock + 2 * past
        room = columns - fixed
        bar = max(8, min(40, room // 3 if ROOMY <= columns < NAMED else room * 2 // 5))
        return cls(name, bar, busy_bar, limit, clock, past)


def gpu_lines(data: ScreenData, columns: int, rows: int, *, headed: bool) -> list[Line]:
    """Return at most `rows` rows for the GPUs. If no GPUs are known, return the reason."""
    snapshot = data.snapshot
    if not snapshot.gpus:
        said = plain(snapshot.gpus_error or "NVML works, but reports no GPU")
        return [cut([("GPUs  ", "strong"), (said, "quiet")], columns)]
    lines: list[Line] = []
    if snapshot.gpus_error:
        age = short_numbers.ago(snapshot.gpus_age_seconds or 0)
        said = f"GPUs as of {age}: {plain(snapshot.gpus_error)}"
        lines.append(cut([(said, "warning")], columns))
    kinds = {gpu.name for gpu in snapshot.gpus if gpu.name}
    widths = GpuColumns.of(columns, is_mixed=len(kinds) > 1)
    if headed:
        lines.append(padded(_header(widths, data), columns))
    room = rows - len(lines)
    shown = snapshot.gpus if len(snapshot.gpus) <= room else snapshot.gpus[: max(0, room - 1)]
    lines += [padded(_gpu(gpu, data, widths, columns), columns) for gpu in shown]
    if left := snapshot.gpus[len(shown) :]:
        lines.append(cut([(_in_short(left), "quiet")], columns))
    return lines


def _header(widths: GpuColumns, data: ScreenData) -> Line:
    past = "hour" if data.is_hour else "recent"
    words = [
        ("GPU" if widths.name else " #", 3 + widths.name),
        ("memory", widths.bar + 1),
        ("GiB", 10),
        ("busy", 7 + widths.busy_bar),
        ("temp", 5),
        ("power", 9 if widths.limit else 5),
        ("clock", widths.clock and widths.clock - 1),
    ]
    header = "".join(_titled(word, columns) for word, columns in words)
    header += " " if widths.clock else ""  # the column for the reason of a slow clock
    if widths.past:
        for word in ("mem", "busy"):
            wide, narrow = f" {past}: {word}", f" {word}{' 1h' if data.is_hour else ''}"
            header += _titled(wide if len(wide) <= widths.past + 1 else narrow, widths.past + 1)
    return [(f"{header}  who", "title")]


def _titled(word: str, columns: int) -> str:
    right = word in ("GiB", "busy", "temp", "power", "clock")
    return filled(word, columns, right=right) if columns else ""


def _gpu(gpu: Gpu, data: ScreenData, widths: GpuColumns, columns: int) -> Line:
    name = plain(gpu.name or "").removeprefix("NVIDIA ")
    line: Line = [(f"{gpu.index:>2} ", "strong")]
    if widths.name:
        line.append((f"{filled(name, widths.name - 1)} ", ""))
    if gpu.error:
        return [*line, (plain(gpu.error), "bad")]
    shares = data.shares.get(gpu.index, ())
    line += memory_bar(gpu, shares, widths.bar)
    used = short_numbers.used_of(gpu.memory_used_bytes, gpu.memory_total_bytes)
    line.append((f" {used:>10}", _memory_meaning(gpu)))
    line += _busy(gpu, widths)
    warm = warmth(gpu.temperature_celsius, WARM_CELSIUS, HOT_CELSIUS)
    line.append((f" {short_numbers.unit(gpu.temperature_celsius, '°'):>4}", warm))
    line.append(_power(gpu, widths))
    if widths.clock:
        slowed = "▼" if gpu.throttle_reasons else " "
        clock = f" {short_numbers.unit(gpu.sm_clock_mhz, 'MHz'):>7}{slowed}"
        line.append((clock, _clock_meaning(gpu)))
    if widths.past:
        line += _past(gpu, data, widths)
    notes = _notes(gpu, roomy=columns >= ROOMY)
    return [*line, ("  ", ""), *notes, *_who(gpu, data, shares)]


def _memory_meaning(gpu: Gpu) -> str:
    if not gpu.memory_total_bytes or gpu.memory_used_bytes is None:
        return ""
    return warmth(gpu.memory_used_bytes / gpu.memory_total_bytes, FULL_SHARE, OVERFULL_SHARE)


def _busy(gpu: Gpu, widths: GpuColumns) -> Line:
    percent = gpu.utilization_percent
    share = None if percent is None else percent / 100
    text = f"{short_numbers.unit(percent, '%'):>5}"
    if widths.busy_bar:
        return [(" ", ""), *meter(share, widths.busy_bar), (text, ""), (" ", "")]
    return [(" ", ""), level(share), (text, "")]


def _power(gpu: Gpu, widths: GpuColumns) -> Piece:
    if not widths.limit:
        return f" {short_numbers.unit(gpu.power_watts, 'W'):>4}", ""
    limit = "" if gpu.power_limit_watts is None else f"/{gpu.power_limit_watts:.0f}"
    watts = render.UNKNOWN if gpu.power_watts is None else f"{gpu.power_watts:.0f}{limit}W"
    return f" {watts:>8}", ""


def _clock_meaning(gpu: Gpu) -> str:
    reasons = gpu.throttle_reasons or ()
    return "warning" if any(reason not in CALM for reason in reasons) else "quiet"


def _notes(gpu: Gpu, *, roomy: bool) -> Line:
    """Return the errors and throttle reasons of a GPU. If `roomy` is true, harmless ones are
    included."""
    notes: Line = []
    if gpu.xids:
        notes.append((f"XID {gpu.xids[-1].code} ", "bad"))
    if gpu.ecc_uncorrected_errors:
        notes.append((f"ECC {gpu.ecc_uncorrected_errors}! ", "bad"))
    elif gpu.ecc_corrected_errors and roomy:
        notes.append((f"ECC {gpu.ecc_corrected_errors} ", "quiet"))
    reasons = gpu.throttle_reasons or ()
    bad = [reason for reason in reasons if reason not in CALM]
    if bad or (reasons and roomy):
        words = ",".join(SHORT.get(reason, plain(reason)) for reason in bad or reasons)
        notes.append((f"{words} ", "warning" if bad else "quiet"))
    return notes


def _who(gpu: Gpu, data: ScreenData, shares: Sequence[GpuShare]) -> Line:
    leased = data.leases.get(gpu.uuid or "")
    if leased is None and not shares:
        return [("excluded" if gpu.excluded else "free", "quiet")]
    names: dict[str, str] = {} if leased is None else {title(leased): JOB}
    for share in shares:
        names.setdefault(share.owner, share.kind)
    pieces: Line = []
    for owner, kind in names.items():
        pieces.append((" + " if pieces else "", "quiet"))
        pieces.append((plain(owner), kind))
    return pieces


def _past(gpu: Gpu, data: ScreenData, widths: GpuColumns) -> Line:
    line: Line = []
    for name, top, meaning in (
        ("memory_used_bytes", gpu.memory_total_bytes, _memory_meaning(gpu) or "strip"),
        ("utilization_percent", 100, "strip"),
    ):
        series = data.past.get(f"gpu.{gpu.uuid}.{name}")
        drawn = strip(series, widths.past, None if top is None else float(top), meaning)
        line += [(" ", ""), *padded(drawn, widths.past)]
    return line


def _in_short(gpus: Sequence[Gpu]) -> str:
    """Return one line that summarises the GPUs that have no row of their own."""
    used = sum(gpu.memory_used_bytes or 0 for gpu in gpus)
    total = sum(gpu.memory_total_bytes or 0 for gpu in gpus)
    busy = sum((gpu.utilization_percent or 0) > 0 for gpu in gpus)
    lost = sum(gpu.error is not None for gpu in gpus)
    said = f"   and {len(gpus)} more: {busy} busy, {short_numbers.used_of(used, total)}"
    return said + (f", {lost} with errors" if lost else "")


def process_lines(data: ScreenData, columns: int, rows: int) -> list[Line]:
    """Return a header and a row for each process on GPUs, at most `rows` lines in total. Return no
    line if no GPU has a process.
    """
    places: dict[int, list[int]] = {}
    held: dict[int, int | None] = {}
    whose: dict[int, GpuHolder] = {}
    for index, holders in data.holders.items():
        for each in holders:
            places.setdefault(each.pid, []).append(index)
            before = held.get(each.pid, 0)
            known = before is not None and each.held_bytes is not None
            held[each.pid] = (before or 0) + (each.held_bytes or 0) if known else None
            whose[each.pid] = each
    if not whose or rows < 2:
        return []
    lines: list[Line] = [[(f"{'pid':>8} {'memory':>10}  {'GPU':<8} process", "title")]]
    for pid, each in list(whose.items())[: rows - 1]:
        size = filled(render.size(held[pid]), 10, right=True)
        line: Line = [(f"{pid:>8} ", "quiet"), (size, ""), ("  ", "")]
        line.append((f"{filled(in_ranges(places[pid]), 8)} ", "strong"))
        lines.append(cut([*line, (plain(each.owner), each.kind)], columns))
    if (more := len(whose) - rows + 1) > 0:
        lines[-1] = [(f"{'':9}and {more + 1} more", "quiet")]
    return lines


ROWS = 6
"""The rows of the charts, with their titles."""
_BETWEEN = "   "


def gpu_charts(data: ScreenData, columns: int) -> list[Line]:
    """Return the two charts next to each other, in `ROWS` rows; empty if no past values are
    known."""
    busy, used = list[Sequence[float | None]](), list[Sequence[float | None]]()
    for gpu in data.snapshot.gpus:
        if series := data.past.get(f"gpu.{gpu.uuid}.utilization_percent"):
            busy.append(series)
        held, total = data.past.get(f"gpu.{gpu.uuid}.memory_used_bytes"), gpu.memory_total_bytes
        if held and total:
            used.append([None if value is None else 100 * value / total for value in held])
    wide = (columns - len(_BETWEEN)) // 2
    blocks = [
        block
        for word, rows in (("busy", busy), ("memory", used))
        if (block := _chart(word, _means(rows), len(rows), wide, is_hour=data.is_hour))
    ]
    return [
        [piece for block in blocks for piece in (*padded(block[row], wide), (_BETWEEN, ""))][:-1]
        for row in range(ROWS if blocks else 0)
    ]


def _means(rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the mean of all rows at each time. All rows end at the same time."""
    found: list[float | None] = []
    for back in range(1, 1 + max(map(len, rows), default=0)):
        known = [value for row in rows if len(row) >= back and (value := row[-back]) is not None]
        found.append(sum(known) / len(known) if known else None)
    return found[::-1]


def _chart(
    word: str, values: Sequence[float | None], count: int, columns: int, *, is_hour: bool
) -> list[Line]:
    known = [value for value in values if value is not None]
    if not known:
        return []
    span = "the last hour" if is_hour else "since the start"
    of = "" if count == 1 else f", mean of {count} GPUs"
    title: Line = [(f"{word} ", "strong"), (f"{known[-1]:.0f}%", "curve")]
    title.append((f"{of}, {span}, at most {max(known):.0f}%", "quiet"))
    labels = ["100%", *[""] * (ROWS - 3), "0%"]
    drawn = area(values, columns - 6, ROWS - 1, 100.0)
    rows: list[Line] = [
        [(f"{label:>4} ", "quiet"), ("│", "rule"), (text, "strip")]
        for label, text in zip(labels, drawn, strict=True)
    ]
    return [cut(title, columns), *rows]
