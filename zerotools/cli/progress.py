"""The progress of a job as lines: one that is rewritten on a terminal, one now and then elsewhere.

Records are the trainer's datagrams (docs/reference/http-api.md): steps, checkpoints, resumes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from zerotools.cli import render

EVERY_SECONDS = 5.0
Record = Mapping[str, Any]


class ProgressLine:
    """Writes the progress of one job to `stream`."""

    def __init__(
        self,
        stream: TextIO,
        *,
        world_size: int,
        every_seconds: float = EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._tty = stream.isatty()
        self._world_size = world_size
        self._every = every_seconds
        self._clock = clock
        self._memory: dict[int, int] = {}
        self._next = 0.0
        self._held: str | None = None

    def show(self, record: Record) -> None:
        """Take one record."""
        if record.get("rss_bytes") is not None:
            self._memory[int(record.get("rank", 0))] = int(record["rss_bytes"])
        if record.get("event") == "step":
            self._step(record)
        elif text := event_text(record):
            self.say(text)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._erase()
        self._stream.write(text + "\n")
        self._stream.flush()

    def finish(self) -> None:
        """Let the last step stay where it is."""
        if self._held is not None:
            self._stream.write("\n" if self._tty else self._held + "\n")
            self._held = None
        self._stream.flush()

    def _step(self, record: Record) -> None:
        text = step_text(record, self._host_memory())
        if self._tty:
            self._erase()
            self._stream.write(render.shorten(text, (render.terminal_columns() or 80) - 1))
            self._held = text
        elif self._clock() >= self._next:
            self._stream.write(text + "\n")
            self._next = self._clock() + self._every
            self._held = None
        else:
            self._held = text
        self._stream.flush()

    def _host_memory(self) -> str:
        if len(self._memory) >= self._world_size:
            return f"host {render.size(sum(self._memory.values()))}"
        return f"host {render.size(self._memory[0])} (rank 0)" if 0 in self._memory else ""

    def _erase(self) -> None:
        if self._tty and self._held is not None:
            self._stream.write("\r\x1b[K")
            self._held = None


def step_text(record: Record, host_memory: str = "") -> str:
    """`step 12/40  30%  loss 2.5031  lr 3.0e-04  15,300 tokens/s  host 3.0 GiB  14 s left`."""
    step, total = record.get("step") or 0, record.get("steps") or 0
    parts = [f"step {step:>{len(str(total))}}/{total}"]
    if total:
        parts.append(f"{100 * step // total:3d}%")
    if record.get("loss") is not None:
        parts.append(f"loss {record['loss']:.4f}")
    if record.get("lr") is not None:
        parts.append(f"lr {record['lr']:.1e}")
    if record.get("tokens_per_second") is not None:
        parts.append(f"{record['tokens_per_second']:,.0f} tokens/s")
    if host_memory:
        parts.append(host_memory)
    if record.get("gpu_peak_bytes") is not None:
        parts.append(f"GPU {render.size(record['gpu_peak_bytes'])}")
    if record.get("step_seconds") is not None and total > step:
        parts.append(f"{render.duration(record['step_seconds'] * (total - step))} left")
    return "  ".join(parts)


def event_text(record: Record) -> str:
    """A record that is no step, in a sentence; empty for one that is nobody's business."""
    step, path = record.get("step"), render.clean(str(record.get("path", "")))
    match record.get("event"):
        case "checkpoint":
            took = render.duration(record.get("seconds"))
            return f"saved step {step}: {path} ({render.size(record.get('bytes'))} in {took})"
        case "resumed":
            rng = "" if record.get("rng") == "restored" else "; random state seeded anew"
            return f"goes on from step {step}: {path}{rng}"
        case "skipped_checkpoint":
            return f"passed over a damaged checkpoint: {path} ({render.clean(_why(record))})"
        case "error":
            return f"rank {record.get('rank')}: {render.clean(str(record.get('message', '')))}"
    return ""


def _why(record: Record) -> str:
    return str(record.get("why", "no reason given"))
