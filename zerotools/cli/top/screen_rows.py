"""The rows of the screen, as pieces of text with a meaning each: pure, so that they are tested
without a terminal.

A GPU is one line, its bar split by who holds the memory:

    0 Fake H100    ██████▓▓░░░░░░░░░░  61.2/80.0   98 %  61 °C  402 W  job 3 (tiny)
                   job   stranger, free
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from zerotools.cli.job_views.describe import (
    Job,
    is_late,
    loss,
    meaning_of,
    ranks,
    saved_step,
    steps,
    title,
    user_of,
    verification,
    why,
)
from zerotools.cli.output import render
from zerotools.cli.output.sparkline import sparkline
from zerotools.cli.top.looking import RESIDUE, STRANGER, Details, GpuShare, Look
from zerotools.sensors.snapshot import Gpu, Host

Piece = tuple[str, str]
"""Text and its meaning: a key of `STYLES`, or empty."""
Line = list[Piece]

STYLES: Mapping[str, str] = {
    "job": "green",
    STRANGER: "yellow",
    RESIDUE: "red",
    "free": "dim",
    "quiet": "dim",
    "bad": "bold red",
    "warning": "yellow",
    "good": "green",
    "strong": "bold",
    "running": "cyan",
    "busy": "cyan",
}
_BLOCKS = {"job": "█", STRANGER: "▓", RESIDUE: "▚", "free": "░"}
"""Of different shape too: colour alone tells nothing to whoever does not see it."""
JOB_COLUMNS = ("id", "name", "owner", "state", "step", "", "ETA", "loss", "saved", "ranks")
BAR = 10
WIDE, PAST_CELLS = 110, 20
"""From so many columns on, the last hour is drawn beside what is now."""


def gpu_lines(look: Look, columns: int) -> list[Line]:
    """One line for each GPU, or why there is none."""
    snapshot = look.view.snapshot
    if not snapshot.gpus:
        said = snapshot.gpus_error or "NVML answers, and reports none"
        return [[("GPUs  ", "strong"), (render.clean(said), "quiet")]]
    return [_gpu(gpu, look, columns) for gpu in snapshot.gpus]


def _gpu(gpu: Gpu, look: Look, columns: int) -> Line:
    name = render.shorten(render.clean(gpu.name or "?"), 12)
    head: Line = [(f"{gpu.index:>2} ", "strong"), (f"{name:<12} ", "")]
    if gpu.error:
        return [*head, (render.shorten(render.clean(gpu.error), max(1, columns - 16)), "bad")]
    shares = look.shares.get(gpu.index, ())
    bar = memory_bar(gpu, shares, max(8, min(40, columns - 62)))
    numbers = f" {render.gib(gpu.memory_used_bytes):>5}/{render.gib(gpu.memory_total_bytes)}G"
    rest = "".join(
        f" {_unit(value, unit):>{wide}}"
        for value, unit, wide in (
            (gpu.utilization_percent, "%", 4),
            (gpu.temperature_celsius, "°", 4),
            (gpu.power_watts, "W", 5),
        )
    )
    past = past_of(look, f"gpu.{gpu.uuid}.memory_used_bytes", columns, gpu.memory_total_bytes)
    rest += past and f" {past}"
    who = _holders(gpu, look, shares)
    used = 16 + sum(len(text) for text, _ in bar) + len(numbers) + len(rest) + 2
    owner = render.shorten(who[0], max(4, columns - used))
    xid: Line = [(f" XID {gpu.xids[-1].code}", "bad")] if gpu.xids else []
    line = [*head, *bar, (numbers, ""), (rest, "quiet"), *xid, (f"  {owner}", who[1])]
    return _cut(line, columns)


def _holders(gpu: Gpu, look: Look, shares: Sequence[GpuShare]) -> Piece:
    leased = look.view.leases.get(gpu.uuid or "")
    others = [share for share in shares if share.kind != "job"]
    if leased:
        more = f" +{others[0].owner}" if others else ""
        return render.clean(leased + more), "warning" if others else "job"
    if shares:
        return render.clean(shares[0].owner), shares[0].kind
    return "free", "quiet"


def memory_bar(gpu: Gpu, shares: Sequence[GpuShare], width: int) -> Line:
    """The memory of a GPU, `width` cells, a part for each kind of owner."""
    total = gpu.memory_total_bytes or 0
    if total <= 0:
        return [("?" * width, "quiet")]
    bar: Line = []
    left = width
    for kind in ("job", STRANGER, RESIDUE):
        held = sum(share.held_bytes for share in shares if share.kind == kind)
        cells = min(left, math.ceil(held / total * width)) if held else 0
        if cells:
            bar.append((_BLOCKS[kind] * cells, kind))
            left -= cells
    if not bar and gpu.memory_used_bytes:
        cells = min(left, round(gpu.memory_used_bytes / total * width))
        bar, left = [("█" * cells, "quiet")], left - cells
    return [*bar, (_BLOCKS["free"] * left, "free")]


def _unit(value: float | None, unit: str) -> str:
    return render.UNKNOWN if value is None else f"{value:.0f}{unit}"


def past_of(look: Look, name: str, columns: int, top: int | None) -> str:
    """The last hour of a series in a few cells, where the screen is wide and the daemon knows."""
    if columns < WIDE or name not in look.past:
        return ""
    return sparkline(look.past[name], PAST_CELLS, None if top is None else (0.0, float(top)))


def host_line(host: Host, past: str = "") -> Line:
    """RAM, its last hour, swap, load and pressure."""
    line: Line = [
        ("RAM ", "strong"),
        (f"{render.gib(host.memory_used_bytes)}/{render.gib(host.memory_total_bytes)}G", ""),
    ]
    if past:
        line.append((f" {past}", "quiet"))
    if host.swap_total_bytes:
        used = f"{render.gib(host.swap_used_bytes)}/{render.gib(host.swap_total_bytes)}G"
        line += [("  swap ", "strong"), (used, "warning" if host.swap_used_bytes else "")]
    busy = "" if host.cpu_percent is None else f"{host.cpu_percent:.0f}% of "
    line += [("  CPU ", "strong"), (f"{busy}{host.cpu_count}, load {host.load_average[0]:.1f}", "")]
    if host.pressure is not None and host.pressure.memory is not None:
        lost = host.pressure.memory.some_avg10_percent
        line += [("  PSI mem ", "strong"), (f"{lost:.1f}%", "bad" if lost >= 10 else "")]
    return line


def job_cells(job: Job, now: float | None = None) -> list[Piece]:
    """A row of the table of jobs, under `JOB_COLUMNS`."""
    now = time.time() if now is None else now
    done, total = _progress(job)
    state = str(job["state"]).replace("_", " ")
    return [
        (str(job["id"]), "strong"),
        (render.shorten(render.clean(str(job["name"] or "")), 16), ""),
        (render.shorten(user_of(job), 10), "quiet"),
        (state, meaning_of(str(job["state"]))),
        (steps(job), "warning" if is_late(job) else ""),
        (_bar(done, total), "running"),
        (eta(job), ""),
        (loss(job["progress"]), "bad" if loss(job["progress"]) == "nan" else ""),
        _saved(job),
        (ranks(job), ""),
    ]


def _saved(job: Job) -> Piece:
    """`40 ✓` where the newest checkpoint is verified."""
    text = saved_step(job)
    verified = text.endswith(" verified") and not text.endswith("not verified")
    short = text.replace("not verified", "?").replace("verified", "✓")
    return short, "good" if verified else ""


def _progress(job: Job) -> tuple[int, int]:
    text = steps(job).partition("/")
    return (int(text[0]), int(text[2])) if text[0].isdecimal() and text[2].isdecimal() else (0, 0)


def _bar(done: int, total: int) -> str:
    cells = 0 if total <= 0 else min(BAR, BAR * done // total)
    return "" if total <= 0 else "━" * cells + "╌" * (BAR - cells)


def eta(job: Job) -> str:
    """The time that is left at the speed of the last step; `-` where that is not known."""
    done, total = _progress(job)
    seconds = (job["progress"] or {}).get("step_seconds")
    if job["state"] != "running" or not total or is_late(job) or not _is_number(seconds):
        return render.UNKNOWN
    return render.duration(float(seconds) * max(0, total - done))


def _is_number(value: object) -> TypeGuard[float]:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value < 1e12
        and math.isfinite(value)
    )


def detail_lines(job: Job | None, details: Details | None, columns: int, room: int) -> list[Line]:
    """What is known of the job that is selected, in `room` lines."""
    if job is None:
        return []
    lines: list[Line] = [[(title(job), "strong"), (f"  {render.clean(why(job))}", "")]]
    record = job["progress"] or {}
    speed = record.get("tokens_per_second")
    told = [f"{float(speed):.0f} tokens/s"] if _is_number(speed) else []
    mfu = record.get("mfu")
    told += [f"MFU {100 * float(mfu):.1f} %"] if _is_number(mfu) else []
    told += [verification(job)] if job["latest_checkpoint"] else []
    if told:
        lines.append([("  ".join(told), "quiet")])
    if details is not None and details.job_id == job["id"]:
        if details.curves.loss:
            lines.append(_curve("loss", details.curves.loss, columns))
        if details.curves.eval_loss:
            lines.append(_curve("eval", details.curves.eval_loss, columns))
        tail = details.log[-max(0, room - len(lines)) :] if room > len(lines) else ()
        lines += [[(render.clean(text), "quiet")] for text in tail]
    return [_cut(line, columns) for line in lines[:room]]


def _curve(name: str, points: Mapping[int, float], columns: int) -> Line:
    width = max(8, min(60, columns - 40))
    values = [points[step] for step in sorted(points)]
    said = f" {render.loss(values[0])} -> {render.loss(values[-1])}"
    return [(f"{name} ", "strong"), (sparkline(values, width), "running"), (said, "")]


def _cut(line: Line, columns: int) -> Line:
    left, kept = columns, []
    for text, meaning in line:
        short = render.shorten(text, left) if left > 0 else ""
        kept.append((short, meaning))
        left -= render.width(short)
    return kept
