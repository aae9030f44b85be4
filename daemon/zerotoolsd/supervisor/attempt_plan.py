"""`attempt.json`: all settings of the supervisor for one attempt."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from zerotoolsd.supervisor.set_numa_binding import RankBinding

ATTEMPT = "attempt.json"
RUN = "run.json"
EXIT = "exit.json"
ENDED = "ended.json"
"""Name of a file with the preliminary contents of `exit.json`. It exists while the steps after
a finished run are still running.
"""
LEDGER = "ledger"
"""Name of the file in which the end of each rank is recorded, before the supervisor reacts to
it (`exit_record/process_ledgers`).
"""
REQUEST = "request.json"
LOCK = "lock"
STOP = "stop"
NOTIFY = "notify.sock"
PROGRESS = "progress.jsonl"
SUMMARY = "summary"
"""Name of the event in `progress.jsonl` with which the supervisor stores the totals of an
attempt so far.
"""

OWN = "own"
"""Name of the directory for files that are kept between attempts, inside the job directory of
another user.
"""
SLURM_NAME = "slurm.json"
"""Name of the file with the word that makes the name of a job in Slurm unique
(`zerotoolsd.slurm.watcher`). It is kept between attempts.
"""

TIME_LIMIT = "time limit"
"""Reason of a stop because the job has reached its time limit."""

GOES_ON = frozenset({"preempt", "resize", "relieve", "relieve_gpu", "yield"})
"""Reasons of a stop after which the daemon starts the job again without a request of a user."""

OUTSIDE = "SIGTERM"
"""Reason of a stop that was not requested by the daemon."""

FINDER = "finder.json"
"""Name of the file with the input of the checkpoint finder
(`zerotoolsd.children.checkpoint_finder`).
"""

UNIT_PREFIX = "zerotools-job-"
"""Prefix of the names of the systemd units for attempts. Each unit may manage its own control
groups (`Delegate=`).
"""

PORT = "{free_port}"
"""Placeholder in `argv`. The supervisor replaces it with the number of the port that is
reserved for the job.
"""

EXIT_LOCKED = 3
"""Exit status of the supervisor if another supervisor already holds the lock of the attempt."""
EXIT_NO_LIMITS = 5
"""Exit status of the supervisor if the limits that the job requires cannot be set on this
machine.
"""
EXIT_USED = 4
"""Exit status of the supervisor if the attempt was already started before."""


_EMPTY: Mapping[str, Any] = MappingProxyType({})
_TUPLES = (
    *("argv", "gpu_uuids", "finder", "mounts"),
    *("closing", "thinning", "uploading", "fetching", "exporting"),
)


class Plan(NamedTuple):
    """All settings of one attempt.

    Attributes:
        argv, env: the command and the environment of each rank, or of the launcher (`launcher`).
            Variables such as RANK are added for each rank.
        fetching: the command that downloads the checkpoint to resume from, before the ranks start.
        exporting: the command that exports the model of an evaluation, before the ranks start.
        thinning, uploading: commands that run after each checkpoint, while the ranks continue.
        closing: the command that runs after all ranks have ended.
        own_program: whether the ranks run a program of the user instead of the built-in trainer. If
            so, a stop also sends SIGTERM, exit status 0 after a stop means "stopped" and not
            "finished", and a rank may end long after another one.
        launcher: whether `argv` starts a single process, such as torchrun, which starts the ranks.
        watches: whether the only rank watches a process that a user started by hand, and reports
            the end of that process.
        finder: the command that searches for checkpoints, if a search is necessary.
        stall: the limits for ranks without progress (`heartbeats.stall_limits.StallLimits`).
        gpu_locks: the argument of `gpu_locks.acquire_locks`, which runs before anything starts.
        kill_seconds: a process that is still alive this many seconds after SIGKILL is recorded as a
            leftover.
        limits, wished_limits: the limits that must be set (`cgroups.limit_settings`), and those
            that are set if possible.
        cgroups: whether to use a control group for the processes, if possible.
        mounts: the file systems on which the job has files, without the root file system.
        meeting: the address at which the ranks of several nodes meet, and the number of this node:
            `host`, `port`, `nodes`, `node_rank`. Empty for one node.
        bindings: the CPU binding of each started process; empty: no process is bound.
        gpu_part: the fraction of each GPU that the attempt has booked. It is recorded here in case
            the queue is lost and rebuilt.
    """

    job_id: int
    attempt: int
    token: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    umask: int
    world_size: int
    gpu_uuids: tuple[str, ...]
    grace_seconds: float
    straggler_seconds: float
    log_limit_bytes: int
    closing: tuple[str, ...] = ()
    thinning: tuple[str, ...] = ()
    uploading: tuple[str, ...] = ()
    fetching: tuple[str, ...] = ()
    exporting: tuple[str, ...] = ()
    own_program: bool = False
    launcher: bool = False
    watches: bool = False
    finder: tuple[str, ...] = ()
    kill_seconds: float = 30.0
    stall: Mapping[str, Any] = _EMPTY
    limits: Mapping[str, int] = _EMPTY
    cgroups: bool = True
    wished_limits: Mapping[str, int] = _EMPTY
    mounts: tuple[str, ...] = ()
    gpu_locks: Mapping[str, Any] = _EMPTY
    bindings: tuple[RankBinding, ...] = ()
    meeting: Mapping[str, Any] = _EMPTY
    gpu_part: float = 1.0

    @property
    def has_final_tasks(self) -> bool:
        """Return whether closing, thinning or uploading runs after all ranks have ended."""
        return bool(self.closing or self.thinning or self.uploading)

    @property
    def processes(self) -> int:
        """Return the number of processes that the supervisor starts. Processes that a launcher
        starts do not count.
        """
        return 1 if self.launcher else self.world_size

    def to_json(self) -> dict[str, Any]:
        """Return all fields of the plan as a dict, keyed by name, with JSON values."""
        tree = {name: getattr(self, name) for name in self._fields}
        plain = {
            name: dict(tree[name])
            for name in ("env", "stall", "limits", "wished_limits", "gpu_locks", "meeting")
        }
        bindings = [binding.to_json() for binding in self.bindings]
        return {**tree, **plain, "bindings": bindings}

    def binding_of(self, index: int) -> RankBinding | None:
        """Return the CPU and memory binding of the process `index`; None if it is not bound."""
        return self.bindings[index] if index < len(self.bindings) else None

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Plan:
        """Return the plan from the dict `tree`, which `to_json` returned. Unknown keys, from a
        newer daemon, are ignored.
        """
        known = {name: tree[name] for name in cls._fields if name in tree}
        for name in _TUPLES:
            known[name] = tuple(known.get(name, ()))
        known["bindings"] = tuple(map(RankBinding.from_json, known.get("bindings", ())))
        return cls(**known)
