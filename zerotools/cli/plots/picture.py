"""Curves as a picture, by matplotlib, which is imported only then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.io.files.packages import missing
from zerotools.jobs.step_curves import CurvePoints, Curves

ENDINGS = (".png", ".svg", ".pdf")
GIB = 2**30


def check_name(path: Path) -> None:
    """Raise BadRequest if the name has no suffix of a picture."""
    if path.suffix.lower() not in ENDINGS:
        raise BadRequest(f"-o {path}: must end in {' or '.join(ENDINGS)}")


def save(named: Sequence[tuple[str, Curves]], path: Path) -> None:
    """Draw loss and memory by step of each job, by its title, into `path`; the ending sets the
    format.

    Raises:
        BadRequest: matplotlib is not installed, or `path` cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise missing(
            "a picture", "matplotlib", "leave -o out for a chart in the terminal"
        ) from None
    figure: Any = Figure(figsize=(9, 6), layout="constrained")
    loss, memory = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    figure.suptitle(_text(", ".join(title for title, _ in named)))
    for title, curves in named:
        of = f", {_text(title)}" if len(named) > 1 else ""
        _curve(loss, curves.loss, f"loss{of}", 1)
        _curve(loss, curves.eval_loss, f"evaluation{of}", 1, marker="o")
        _curve(memory, curves.host_bytes, f"host, rank 0{of}", GIB)
        _curve(memory, curves.gpu_bytes, f"GPU, peak so far{of}", GIB)
    loss.set_ylabel("loss")
    memory.set_ylabel("memory (GiB)")
    held = (curves for _, each in named for curves in (each.host_bytes, each.gpu_bytes))
    highest = max((value for points in held for value in points.values()), default=GIB)
    memory.set_ylim(0, 1.1 * highest / GIB)
    memory.set_xlabel("step")
    for axes in (loss, memory):
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise BadRequest(f"-o {path}: cannot be written: {error.strerror}") from None


def _text(title: str) -> str:
    return title.replace("$", r"\$")  # a dollar sign would begin a formula


def _curve(axes: Any, points: CurvePoints, label: str, unit: float, **style: str) -> None:
    if points:
        steps = sorted(points)
        axes.plot(steps, [points[step] / unit for step in steps], label=label, **style)
