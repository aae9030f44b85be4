"""The log of a toy program, from its first attempt to its last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from zerotools.jobs.drill.toy_program import final_state


def read_notes(path: Path) -> list[str]:
    """Return the lines so far; empty if it has not begun."""
    try:
        return path.read_text("ascii", "replace").splitlines()
    except FileNotFoundError:
        return []


class NotedRun:
    """The log of one job with `steps` steps to do, in order."""

    def __init__(self, lines: Sequence[str], steps: int) -> None:
        self.beside: list[str] = []
        """Attempts that ran at the same time as another."""
        self.again: list[str] = []
        """Steps that were run again though a checkpoint had them."""
        self.lost: list[str] = []
        """Steps that were saved and are missing afterwards."""
        self.late: list[str] = []
        """Actions after the program was done."""
        self.saved = 0
        self._at = 0
        self._is_done = False
        self._steps = steps
        for line in lines:
            self._take(*line.split())

    def _take(self, word: str, *rest: str) -> None:
        match word:
            case "began":
                self._began(rest[0], int(rest[2]))
            case "step":
                self._step(int(rest[0]))
            case "saved":
                self.saved = max(self.saved, int(rest[0]))
            case "beside":
                self.beside.append(f"attempt {rest[0]} ran at the same time as another one")
            case "done":
                self._done(int(rest[0]))

    def _began(self, attempt: str, begin: int) -> None:
        if begin < self.saved:
            self.again.append(
                f"attempt {attempt} began from step {begin}, and step {self.saved} was saved"
            )
        if begin > self._at:
            self.lost.append(
                f"attempt {attempt} began from step {begin}, and step {self._at} was the last"
            )
        # A checkpoint may have its name, and the program have been killed before it noted so.
        self.saved = max(self.saved, begin)
        self._at = begin

    def _step(self, step: int) -> None:
        if self._is_done:
            self.late.append(f"step {step} was run after the program was done")
        if step != self._at + 1:
            self.lost.append(f"step {step} came after step {self._at}")
        self._at = step

    def _done(self, state: int) -> None:
        self._is_done = True
        if self._at != self._steps:
            self.lost.append(f"it was done after step {self._at} of {self._steps}")
        elif state != final_state(self._steps):
            self.lost.append(
                f"its last state is {state}, and {self._steps} steps, each once, give "
                f"{final_state(self._steps)}"
            )

    def unfinished(self) -> Iterator[str]:
        """Yield why it cannot have succeeded."""
        if not self._is_done:
            yield f"its program stopped after step {self._at} of {self._steps}"
        elif self.saved < self._steps:
            yield f"its last step {self._steps} was not saved, step {self.saved} was"
