"""Lists the points of stories, takes a sample of them, and counts the results."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harness.faults.tracing import ERRORS, OPENING, OPENING_ERRORS, Injection


@dataclass(kw_only=True)
class Found:
    """The result of one run of a story.

    Attributes:
        hit: whether the call at which the injection happens was made.
        seconds: the time that the run took.
        calls: the number of calls by name, for a run without an injection.
        wrong: a sentence for each error.
        unseen: the number of ranks that ended when no process was left to read their exit status.
    """

    hit: bool = False
    seconds: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    unseen: int = 0


class Story(Protocol):
    """One scenario, and the process to kill in it."""

    @property
    def name(self) -> str: ...

    def run(self, place: Path, injection: Injection | None) -> Found:
        """Run the scenario once in the new directory `place`, with `injection` or without a
        fault.
        """
        ...


@dataclass(frozen=True)
class Point:
    """One system call of a story, at which the process is killed or the call fails."""

    story: Story
    injection: Injection

    def __str__(self) -> str:
        return f"{self.story.name}, {self.injection}"


def points_of(story: Story, calls: Counter[str], *, kills: bool, errors: bool) -> Iterator[Point]:
    """Yield all points of a story. `calls` is the number of its calls, by name.

    With `kills`, yield a kill at each call. With `errors`, yield each possible error of each call.
    """
    for call, count in sorted(calls.items()):
        possible = OPENING_ERRORS if call in OPENING else ERRORS
        for number in range(1, count + 1):
            if kills and call not in OPENING:
                yield Point(story, Injection(call, number))
            for error in possible if errors and not story.name.startswith("both") else ():
                yield Point(story, Injection(call, number, error))


def sampled(points: Sequence[Point], most: int | None, seed: int) -> list[Point]:
    """Return `most` of the points, chosen at random with `seed`, in their order.

    Every point has the same chance.
    """
    if most is None or most >= len(points):
        return list(points)
    chosen = random.Random(seed).sample(range(len(points)), most)
    return [points[index] for index in sorted(chosen)]


@dataclass
class Totals:
    """The results of all points."""

    points: int = 0
    missed: int = 0
    unseen: int = 0
    longest: tuple[float, str] = (0.0, "none")
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    orphaned: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, where: str, found: Found) -> None:
        """Count the result `found` of the point `where`."""
        self.points += 1
        self.missed += not found.hit
        self.unseen += found.unseen
        self.longest = max(self.longest, (found.seconds, where))
        self.note(where, found.wrong)

    def note(self, where: str, sentences: Iterable[str]) -> None:
        """Count errors of the point `where`, given as sentences."""
        for sentence in sentences:
            self._kind(sentence).append(f"{where}: {sentence}")

    def _kind(self, sentence: str) -> list[str]:
        if "again" in sentence or "not over" in sentence:
            return self.doubled
        if "runs outside" in sentence or "was left" in sentence:
            return self.orphaned
        return self.failed if " failed" in sentence else self.lost

    def __str__(self) -> str:
        return (
            f"{self.points} kill points, {len(self.lost)} lost, {len(self.doubled)} doubled, "
            f"{len(self.orphaned)} orphaned, {len(self.failed)} failed by the machine"
        )

    @property
    def sentences(self) -> list[str]:
        """The sentences of all errors."""
        return [*self.lost, *self.doubled, *self.orphaned, *self.failed]
