"""The results of a fault-injection test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zerotools.jobs.drill.faults import Fault
from zerotools.jobs.drill.promises import Promise
from zerotools.jobs.drill.tally import Tally


@dataclass(frozen=True, kw_only=True)
class DrillReport:
    """`states`: the number of jobs that ended in each. `attempts` is the number of starts of jobs,
    `began` the number of started jobs. `place` is the test's directory, if it is kept."""

    seed: int
    seconds: float
    faults: Sequence[Fault]
    states: Mapping[str, int]
    attempts: int
    began: int
    resumed: int
    daemon_starts: int
    tally: Tally
    promises: Sequence[Promise]
    place: Path | None

    @property
    def held(self) -> bool:
        """True if every guarantee held."""
        return all(promise.held for promise in self.promises)

    @property
    def by_kind(self) -> dict[str, int]:
        """How many faults of each kind were made."""
        return dict(sorted(Counter(fault.kind for fault in self.faults).items()))

    @property
    def restarts(self) -> int:
        """How often jobs were started again."""
        return self.attempts - self.began

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs; `effective_training_time` is a share, None if no step was
        run."""
        tally = self.tally
        return {
            "held": self.held,
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "effective_training_time": round(tally.effective, 4) if tally.seconds else None,
            "steps_run": tally.steps_run,
            "steps_kept": tally.steps_kept,
            "ends": {"all": sum(self.states.values()), **self.states},
            "restarts": self.restarts,
            "resumed": self.resumed,
            "daemon_starts": self.daemon_starts,
            "faults": {"all": len(self.faults), "by_kind": self.by_kind},
            "promises": [{**asdict(each), "held": each.held} for each in self.promises],
            "timeline": [
                {"seconds": round(each.seconds, 3), "kind": each.kind, "what": each.what}
                for each in self.faults
            ],
            "directory": None if self.place is None else str(self.place),
        }
