"""What checkpoints cost a run on many nodes, and what failures cost it: formulas, and a simulation.

    python -m benchmarks.plan_scale.arithmetic

A run of N nodes saves every T seconds, which takes C; something breaks every M seconds on average,
which costs what was done since the last save, and R until the run goes on. Of its time,

    C / (T + C)        goes to saving
    (T + C) / 2M       is done again: a failure comes in the middle of an interval, on average
    R / M              goes to coming back

which is least for T = sqrt(2 C M) (Young, CACM 17(9), 1974; Daly, FGCS 22(3), 2006, section 2). The
simulation draws failures as a Poisson process, also while the run saves and while it comes back.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import sqrt

LLAMA_3_FAILURES = 419
"""Unexpected interruptions of Llama 3 405B on 16,384 GPUs in 54 days (arXiv 2407.21783,
section 3.3.4)."""
LLAMA_3_DAYS, LLAMA_3_GPUS = 54, 16384
BYTES = {"weights and optimizer": 12, "16-bit weights beside them": 2}
"""Of a checkpoint, for each parameter: fp32 masters and two moments; what DeepSpeed saves, too."""


@dataclass(frozen=True)
class Cluster:
    """`bandwidth` is what one node writes, in bytes a second, of at most `storage` for all;
    `node_days` are the days between two failures of one node; `restart` the seconds until a run
    goes on that failed."""

    nodes: int
    bandwidth: float
    storage: float
    node_days: float
    restart: float

    def seconds_to_save(self, nbytes: float) -> float:
        """How long a checkpoint takes that all nodes write together."""
        return nbytes / min(self.nodes * self.bandwidth, self.storage)

    @property
    def seconds_between_failures(self) -> float:
        return self.node_days * 86400 / self.nodes


def checkpoint_bytes(parameters: float) -> float:
    """Of a job of ours (engine torch), with AdamW."""
    return parameters * BYTES["weights and optimizer"]


def llama_3_node_days(gpus_of_a_node: int = 8) -> float:
    """Days between two failures of a node, by the rate of that run."""
    return LLAMA_3_DAYS * (LLAMA_3_GPUS / gpus_of_a_node) / LLAMA_3_FAILURES


def best_interval(cost: float, between: float) -> float:
    """Seconds between two saves with which least is lost."""
    return sqrt(2 * cost * between)


def lost(interval: float, cost: float, between: float, restart: float) -> float:
    """The part of the time that is not training, by the formula above."""
    return cost / (interval + cost) + (interval + cost) / (2 * between) + restart / between


def simulated(
    interval: float, cost: float, between: float, restart: float, *, days: float, seed: int
) -> float:
    """The same, of a run of so many days whose failures are drawn."""
    draw = random.Random(seed)
    end, now, kept = days * 86400, 0.0, 0.0
    failure = draw.expovariate(1 / between)
    while now < end:
        saved = now + interval + cost
        if failure > saved:
            now, kept = saved, kept + interval
            continue
        now = failure
        failure += draw.expovariate(1 / between)
        back = now + restart
        while failure < back:  # it fails again while it comes back
            back = failure + restart
            failure += draw.expovariate(1 / between)
        now = back
    return 1 - kept / now


CASES = {
    "two servers": Cluster(2, 1e9, 1e9, llama_3_node_days(), 120),
    "16 nodes": Cluster(16, 2e9, 20e9, llama_3_node_days(), 300),
    "128 nodes": Cluster(128, 2e9, 100e9, llama_3_node_days(), 600),
    "2,048 nodes": Cluster(2048, 2e9, 1000e9, llama_3_node_days(), 900),
}
MODELS = {"two servers": 7e9, "16 nodes": 70e9, "128 nodes": 70e9, "2,048 nodes": 405e9}


def rows(days: float = 2000, seed: int = 1) -> list[tuple[str, ...]]:
    """The table of docs/explanation/scale.md."""
    found = []
    for name, cluster in CASES.items():
        size = checkpoint_bytes(MODELS[name])
        cost, between = cluster.seconds_to_save(size), cluster.seconds_between_failures
        best = best_interval(cost, between)
        expected = lost(best, cost, between, cluster.restart)
        drawn = simulated(best, cost, between, cluster.restart, days=days, seed=seed)
        found.append(
            (
                name,
                f"{MODELS[name] / 1e9:.0f}B",
                f"{size / 1e12:.2f} TB",
                f"{size / cluster.nodes / 1e9:.1f} GB",
                f"{cost:.0f} s",
                f"{between / 3600:.1f} h",
                f"{best / 60:.0f} min",
                f"{expected:.2%}",
                f"{drawn:.2%}",
            )
        )
    return found


if __name__ == "__main__":
    for row in rows():
        print("| " + " | ".join(row) + " |")
