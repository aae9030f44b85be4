"""What is printed: a line for each measurement, and what was asked beside what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.queue.http_load import Load


def line(name: str, text: str) -> None:
    """One measurement, as soon as it is there."""
    print(f"{name:<44} {text}", flush=True)


def show(name: str, load: Load) -> None:
    """One load."""
    line(
        name,
        f"{load.rate:8.0f} /s   median {load.percentile(0.5) * 1e3:6.1f} ms   "
        f"99 % {load.percentile(0.99) * 1e3:6.1f} ms   errors {load.errors}",
    )


@dataclass
class Asked:
    """The table of what was asked."""

    _rows: list[tuple[str, str, str, bool]] = field(default_factory=list)

    def note(self, what: str, asked: str, measured: str, holds: bool) -> None:
        """One figure."""
        self._rows.append((what, asked, measured, holds))

    def below(
        self, what: str, limit: float, measured: float, shown: Callable[[float], str]
    ) -> None:
        """A figure that is to be less than `limit`."""
        self.note(what, f"< {shown(limit)}", shown(measured), measured < limit)

    def show(self) -> None:
        """Print it."""
        print(f"\n{'asked':<58} {'limit':>12} {'measured':>16}")
        for what, asked, measured, holds in self._rows:
            print(f"{what:<58} {asked:>12} {measured:>16}   {'holds' if holds else 'MISSED'}")


def milliseconds(value: float) -> str:
    """Of seconds."""
    return f"{value * 1e3:.1f} ms"


def seconds(value: float) -> str:
    """As they are."""
    return f"{value:.2f} s"


def megabytes(value: float) -> str:
    """Of bytes; a MB is a million."""
    return f"{value / 1e6:.1f} MB"


def percent(value: float) -> str:
    """Of a share."""
    return f"{value:.2%}"
