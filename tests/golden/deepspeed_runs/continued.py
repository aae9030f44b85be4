"""Training that goes on after a reshard, by real DeepSpeed, against the same run uninterrupted.

A run of N ranks is saved and goes on. Its save, laid out for M ranks, is loaded by unmodified
DeepSpeed: the state must be the saved one bit for bit, and the losses those of the uninterrupted
run, within the order in which M ranks sum. Laid out for M and for N again, it must go on bit for
bit as DeepSpeed's own save does. Needs no torch itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.golden_files import digests
from zerotools.formats import read, training_of
from zerotools.formats.deepspeed.schema.ds_config import AS_IS, ZeroSettings

from .judging import Move, reshard
from .launch import launch

SAVED_AFTER, LAST = 4, 9
LAUNCHED_TOGETHER = 20
TOLERANCE: Mapping[str, float] = {"fp32": 1e-6, "bf16": 5e-3, "fp16": 5e-4}
"""Greatest relative difference of a loss at another number of ranks, where only sums differ."""


@dataclass(frozen=True)
class Course:
    """A case trained on `ranks` ranks, and continued on `to`, maybe with other ZeRO settings."""

    case: str
    ranks: int
    to: int
    settings: ZeroSettings = AS_IS

    @property
    def move(self) -> Move:
        return Move(self.case, self.settings)

    @property
    def home(self) -> str:
        """Directory of everything that is made of the case's save at this number of ranks."""
        return f"{self.case}-at-{self.ranks}"

    @property
    def there(self) -> str:
        """What was laid out, and goes on, for the new ranks and settings."""
        return "-".join([f"to-{self.to}", *self.move.asked])

    @property
    def back(self) -> str:
        """What was laid out from that for the old ones; one per case, ranks and settings."""
        return "-".join(["back", *self.move.asked])

    def __str__(self) -> str:
        return f"{self.move} {self.ranks}->{self.to}"


RESET = (
    Course("z2-bf16-zoo", 2, 3, ZeroSettings(stage=3)),
    Course("bf16-optimizer-accumulate", 2, 3, ZeroSettings(stage=3)),
    Course("z3-fp32-sub-groups", 2, 3, ZeroSettings(stage=2)),
    Course("z1-fp32-accumulate", 3, 2, ZeroSettings(stage=3, sub_group_size=60)),
    Course("z2-bf16-aligned-round-robin", 3, 2, ZeroSettings(round_robin=False)),
    Course("z3-bf16-zoo", 3, 2, ZeroSettings(stage=1)),
)
"""Courses that go on with other ZeRO settings than those that saved."""


@dataclass(frozen=True)
class Verdict:
    """`differences` should be empty; the others are greatest relative differences of a loss.

    `drift` after the reshard, `own_drift` after DeepSpeed's own save and load, `weights_only` where
    the optimizer's state was left behind: what the tolerance can tell. These two are None where
    DeepSpeed was not asked. `compared` counts steps.
    """

    differences: list[str]
    tolerance: float
    drift: float
    own_drift: float | None
    weights_only: float | None
    compared: int


def continue_all(
    courses: Iterable[Course], directory: Path, asked: Iterable[Course] | None = None
) -> dict[Course, Verdict]:
    """Train, reshard and continue all courses; one launch or more per number of ranks and phase.
    Of `asked`, all without it, DeepSpeed's own saves are continued, too."""
    todo = list(dict.fromkeys(courses))
    starts = {course.home: course for course in todo}.values()
    homes = {course.home for course in (todo if asked is None else asked)}
    returns = {(course.home, course.back): course for course in todo}.values()
    _launch([(c.ranks, _training(c)) for c in starts], directory)
    for course in todo:
        _reshard(course, directory / course.home)
    moved = [(c.to, _loading(c, c.there) | {"changes": c.move.changes}) for c in todo]
    back = [(c.ranks, _loading(c, c.back)) for c in returns]
    own = [(c.ranks, run) for c in starts if c.home in homes for run in _own(c)]
    _launch([*moved, *back, *own], directory)
    return {
        course: _judged(course, directory / course.home, course.home in homes) for course in todo
    }


def _reshard(course: Course, home: Path) -> None:
    saved = read(home / "saved")
    there = reshard(saved, home / course.there, course.to, course.settings)
    if not (home / course.back).exists():
        own = ZeroSettings(ds_config=training_of(saved).ds_config) if course.move.changes else AS_IS
        reshard(there, home / course.back, course.ranks, own)


def _launch(runs: Sequence[tuple[int, Mapping[str, Any]]], directory: Path) -> None:
    for ranks in sorted({ranks for ranks, _ in runs}):
        mine = [run for needed, run in runs if needed == ranks]
        for first in range(0, len(mine), LAUNCHED_TOGETHER):
            part = mine[first : first + LAUNCHED_TOGETHER]
            (directory / "runs.json").write_text(json.dumps(part))
            for run in part:
                (directory / run["out"]).parent.mkdir(exist_ok=True)
            launch("tests.golden.deepspeed_runs.continuing", ["runs.json"], ranks, directory)


def _training(course: Course) -> dict[str, Any]:
    saving = {"first": 1, "save": f"{course.home}/saved", "save_after": SAVED_AFTER}
    return _loading(course, "trained") | saving | {"load": None}


def _loading(course: Course, name: str) -> dict[str, Any]:
    path = f"{course.home}/{name}"
    return {
        "case": course.case,
        "changes": {},
        "load": path,
        "weights_only": False,
        "first": SAVED_AFTER + 1,
        "last": LAST,
        "save": None,
        "save_after": None,
        "out": path,
    }


def _own(course: Course) -> Iterator[dict[str, Any]]:
    """Runs from DeepSpeed's own save, once without the optimizer's state."""
    own = {"load": f"{course.home}/saved"}
    yield _loading(course, "own") | own
    yield _loading(course, "weights-only") | own | {"weights_only": True}


def _judged(course: Course, home: Path, asked: bool) -> Verdict:
    own = ("own", "weights-only") if asked else ()
    told = {
        name: json.loads((home / f"{name}.json").read_text())
        for name in ("trained", course.back, course.there, *own)
    }
    uninterrupted = told["trained"]["curve"][SAVED_AFTER:]
    drift, compared = drift_of(uninterrupted, told[course.there]["curve"])
    allowed = TOLERANCE[told["trained"]["precision"]]
    found = [
        f"{course}: {line}"
        for name in (*own[:1], course.back, course.there)
        for line in _unlike(told["trained"]["held"], told[name]["held"], home, name)
    ]
    if not drift <= allowed:
        found.append(f"{course}: a loss differs by {drift:.2e}, more than {allowed:.0e}")
    if told[course.back]["curve"] != (told["own"]["curve"] if asked else uninterrupted):
        found.append(f"{course}: back at {course.ranks} ranks it does not go on as its own save")
    drifts = {name: drift_of(uninterrupted, told[name]["curve"])[0] for name in own}
    return Verdict(found, allowed, drift, drifts.get("own"), drifts.get("weights-only"), compared)


def _unlike(saved: object, held: object, home: Path, name: str) -> Iterator[str]:
    """What the engine held right after loading and had not held when it saved."""
    if held != saved:
        yield f"{name}: {held} was loaded where {saved} was saved"
    before, after = digests(home / "trained.safetensors"), digests(home / f"{name}.safetensors")
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield f"{name}: the engine has another {key}"


def drift_of(
    expected: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
) -> tuple[float, int]:
    """Greatest relative difference of a loss, and how many steps were compared.

    A step that one run skips for its overflow and the other does not ends the comparison: from
    there on they are different runs. The loss of that step itself was still computed before.
    """
    drift, compared = 0.0, 0
    for want, have in zip(expected, found, strict=True):
        compared += 1
        drift = max(abs(have["loss"] - want["loss"]) / abs(want["loss"]), drift)
        if have["skipped"] != want["skipped"]:
            break
    return drift, compared
