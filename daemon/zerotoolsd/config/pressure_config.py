"""`[pressure]` of `zerotoolsd.toml`: the actions before memory is used up."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.binding.declaration import key

NOTHING, WAIT, SAVE, STOP = "nothing", "wait", "save", "stop"


@dataclass(frozen=True, kw_only=True)
class PressureConfig:
    """`[pressure]`: the actions before the memory of the host, or of a shared GPU, is used up; see
    [when memory runs out](../how-to/when-memory-runs-out.md)."""

    most: str = key(
        'The strongest action of the daemon. `"nothing"`: it only watches. `"wait"`: no job '
        'starts, or none on that GPU. `"save"`: the job of lowest value, or the one that '
        "holds more of the GPU than it declared, saves and stops. It continues later, and "
        'this does not count as a restart. `"stop"`: if saving would take too long, the job '
        "ends at once and continues from its last checkpoint.",
        default=WAIT,
        allowed=(NOTHING, WAIT, SAVE, STOP),
    )
    seconds: float = key(
        "Time between two looks at the host's memory while jobs run; at that of GPUs it is at "
        "least a second.",
        default=0.5,
        minimum=0.1,
    )
