"""The progress of a job: on a terminal as one line that is redrawn, elsewhere as periodic lines.

Records are the trainer's datagrams (docs/reference/http-api.md): steps, checkpoints, and the step
from which a job resumes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from zerotools.cli.output import render
from zerotools.jobs.join_attempt_curves import NO_SCORES, REWARDS

EVERY_SECONDS = 30.0
"""The time in seconds between two printed lines of steps if the stream is not a terminal."""
ProgressRecord = Mapping[str, Any]


class ProgressLine:
    """Writes the progress of one job to `stream`."""

    def __init__(
        self,
        stream: TextIO,
        *,
        every_seconds: float = EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._tty = stream.isatty()
        self._every = every_seconds
        self._clock = clock
        self.host_peak_bytes: int | None = None
        self._next = 0.0
        self._next_wait = clock() + every_seconds
        self._unprinted: str | None = None
        self._last: ProgressRecord | None = None

    def show(self, record: ProgressRecord) -> None:
        """Show one record: a step, or a sentence for another event."""
        if record.get("event") == "step":
            self._step(record)
        elif text := event_text(record):
            self.print_line(text)

    def print_line(self, text: str) -> None:
        """Print a line that is not overwritten.

        On a terminal the progress line is erased first, and the next step draws it again below.
        Elsewhere a step that was not printed yet is printed first.
        """
        if self._tty:
            self._erase()
        elif self._unprinted is not None:
            self._stream.write(self._unprinted + "\n")
            self._unprinted = None
        self._stream.write(text + "\n")
        self._stream.flush()

    def waits(self, text: str) -> None:
        """Show the activity of the job while it makes no steps. On a terminal this is shown at
        once, elsewhere periodically.
        """
        if self._tty:
            self._erase()
            columns = (render.terminal_columns(self._stream) or 80) - 1
            self._unprinted = render.shorten(text, columns)
            self._stream.write(self._unprinted)
        elif self._clock() >= self._next_wait:
            self._stream.write(text + "\n")
        else:
            return
        self._next_wait = self._clock() + self._every
        self._stream.flush()

    def finish(self) -> None:
        """Print the last step as a line that is not overwritten."""
        if self._tty and self._last is not None and self._unprinted is None:
            self._step(self._last)
        if self._unprinted is not None:
            self._stream.write("\n" if self._tty else self._unprinted + "\n")
        self._unprinted = self._last = None
        self._stream.flush()

    def _step(self, record: ProgressRecord) -> None:
        columns = (render.terminal_columns(self._stream) or 80) - 1 if self._tty else None
        text = step_text(record, self.host_peak_bytes, columns)
        self._last = record
        if self._tty:
            self._erase()
            self._stream.write(text)
            self._unprinted = text
        elif self._clock() >= self._next:
            self._stream.write(text + "\n")
            self._next = self._clock() + self._every
            self._unprinted = None
        else:
            self._unprinted = text
        self._stream.flush()

    def _erase(self) -> None:
        if self._unprinted is not None:
            self._stream.write("\r\x1b[K")
            self._unprinted = None


def step_text(
    record: ProgressRecord, host_peak_bytes: int | None = None, columns: int | None = None
) -> str:
    """Return a line such as `step 12/40 30% loss 2.5031 grad 0.81 lr 3.0e-04 15,300 tokens/s 14 s
    left`.

    The host memory is the peak of all ranks if it is known, otherwise the memory of rank 0. If the
    text is wider than `columns`, the least important parts are left out. The step, the loss and the
    remaining time are left out last.
    """
    parts = [part for part in _parts(record, host_peak_bytes) if part[1]]
    while columns is not None and len(parts) > 1 and render.width(_joined(parts)) > columns:
        parts.remove(max(parts, key=lambda part: part[0]))
    text = _joined(parts)
    return text if columns is None else render.shorten(text, columns)


def _joined(parts: list[tuple[int, str]]) -> str:
    return "  ".join(text for _, text in parts)


def _parts(record: ProgressRecord, host_peak_bytes: int | None) -> Iterator[tuple[int, str]]:
    """Yield the parts of the line from left to right, each with a number. If the line is too long,
    parts with high numbers are left out first. A part may be empty."""
    step, total = int(_number(record, "step") or 0), int(_number(record, "steps") or 0)
    yield 0, f"step {step:>{len(str(total))}}/{total}" if total > 0 else f"step {step}"
    yield 3, f"{100 * step // total:3d}%" if total > 0 else ""
    yield 1, _loss(record)
    forms = (
        (7, "grad_norm", "grad {:.3g}"),
        (8, "lr", "lr {:.1e}"),
        (9, "loss_scale", "scale {:g}"),
        (4, "tokens_per_second", "{:,.0f} tokens/s"),
        (10, "mfu", "MFU {:.1%}"),
    )
    for order, name, form in forms:
        value = _number(record, name)
        yield order, "" if value is None else form.format(value)
    skipped = _number(record, "skipped_steps")
    yield 5, f"{skipped:.0f} skipped" if skipped else ""
    yield 11, _host_memory(record, host_peak_bytes)
    memory = _number(record, "gpu_peak_bytes")
    yield 6, "" if memory is None else f"GPU {render.size(memory)}"
    left = remaining_time(record)
    yield 2, f"{left} left" if left else ""


def _loss(record: ProgressRecord) -> str:
    # A program that does not log the loss at every step reports `last_loss`.
    name = "loss" if "loss" in record else "last_loss"
    value = _number(record, name)
    if value is not None:
        return f"loss {render.loss(value)}"
    return "loss nan" if name in record else ""  # JSON has no NaN: the API sends null


def _host_memory(record: ProgressRecord, peak_bytes: int | None) -> str:
    if peak_bytes is not None:
        return f"host peak {render.size(peak_bytes)}"
    memory = _number(record, "rss_bytes")
    return "" if memory is None else f"host {render.size(memory)} (rank 0)"


def figures(record: ProgressRecord) -> str:
    """Return a text such as `gradient norm 0.81, learning rate 3.0e-04, loss scale 65536`. Unknown
    values are left out.
    """
    forms = (
        ("grad_norm", "gradient norm {:.3g}"),
        ("lr", "learning rate {:.1e}"),
        ("loss_scale", "loss scale {:g}"),
        ("skipped_steps", "{:.0f} steps skipped"),
    )
    known = ((form, _number(record, name)) for name, form in forms)
    return ", ".join(form.format(value) for form, value in known if value is not None)


def speed(record: ProgressRecord) -> str:
    """Return a text such as `15,300 tokens/s, MFU 41.3%, 0.21 s for the last step`. Unknown values
    are left out.
    """
    forms = (
        ("tokens_per_second", "{:,.0f} tokens/s"),
        ("mfu", "MFU {:.1%}"),
        ("step_seconds", "{:.3g} s for the last step"),
    )
    known = ((form, _number(record, name)) for name, form in forms)
    return ", ".join(form.format(value) for form, value in known if value is not None)


def remaining_time(record: ProgressRecord) -> str:
    """Return the time until the last step, as `14 s`; empty if it is unknown. The ranks estimate
    this time. If they do not, it is computed from the duration of the newest step.
    """
    step, total = _number(record, "step") or 0, _number(record, "steps") or 0
    left, seconds = _number(record, "seconds_left"), _number(record, "step_seconds")
    if left is None and seconds is not None:
        left = seconds * (total - step)
    return render.duration(left) if left is not None and total > step else ""


def _number(record: ProgressRecord, name: str) -> float | None:
    """Return the number `name` of a record; None if its value is not a finite number. A user's
    program may report any JSON value.
    """
    value = record.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if abs(value) <= sys.float_info.max else None  # also None for NaN


def event_text(record: ProgressRecord) -> str:
    """Return a sentence for a record that is not a step; empty if users need not see the record."""
    step, path = int(_number(record, "step") or 0), render.clean(str(record.get("path", "")))
    match record.get("event"):
        case "checkpoint":
            how = "found a checkpoint at" if record.get("found") else "saved"
            return f"{how} step {step}: {path}{_cost(record)}"
        case "eval":
            return f"evaluated step {step}: {evaluation(record)}"
        case "save_failed":
            return f"could not save step {step}: {render.clean(_why(record))}"
        case "resumed":
            rng = "" if record.get("rng") == "restored" else "; random number state seeded again"
            return f"resumes from step {step}: {path}{rng}"
        case "skipped_checkpoint":
            return f"skipped a damaged checkpoint: {path} ({render.clean(_why(record))})"
        case "fetched":
            return f"fetched step {step}: {path} (in {_number(record, 'seconds') or 0:.1f} s)"
        case "uploaded":
            return f"uploaded step {step}: {path}{_cost(record)}"
        case "upload_failed":
            return f"could not upload: {render.clean(_why(record))}"
        case "stall":
            then = "its ranks are killed" if record.get("ends") else "the job continues"
            return (
                f"stalled: {render.clean(_why(record))}; {then}; the stacks of the ranks are in "
                "the log"
            )
        case "error":
            return f"rank {record.get('rank', 0)}: {render.clean(str(record.get('message', '')))}"
    return ""


def _cost(record: ProgressRecord) -> str:
    """Return the size of a checkpoint and the time to save it, in parentheses.

    The text is empty if one of the two is unknown, for example for checkpoints of users' programs.
    """
    size, seconds = _number(record, "bytes"), _number(record, "seconds")
    return "" if size is None or seconds is None else f" ({render.size(size)} in {seconds:.1f} s)"


_SCORES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "bleu": "BLEU"}


def evaluation(record: ProgressRecord) -> str:
    """Format the metrics of an evaluation: `loss 1.5000  perplexity 4.4817  accuracy 0.81`."""
    others = (name for name in record if name in REWARDS or name not in NO_SCORES)
    shown = [_loss({"loss": record["loss"]})] if "loss" in record else []
    for name in ("perplexity", *_SCORES, *others):
        if (value := _number(record, name)) is None:
            continue
        if name in _SCORES:
            shown.append(f"{_SCORES[name]} {value:.2f}")
        else:
            text = render.loss(value) if name == "perplexity" else f"{value:.4g}"
            shown.append(f"{render.clean(name)} {text}")
    return "  ".join(shown)


def _why(record: ProgressRecord) -> str:
    return str(record.get("why", "no reason given"))
