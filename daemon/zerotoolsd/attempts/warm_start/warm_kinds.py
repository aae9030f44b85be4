"""The attempts that may start warm, and the fork server for each. Pure.

The kind of a server is its interpreter, its imports, and every variable of its environment. A
library may read any variable while it is imported, so a job with another value uses another server.
Variables that no import reads, or that differ between attempts, are left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.attempts.backends.launch_backend import LaunchBackend
from zerotoolsd.supervisor.plan import Plan
from zerotoolsd.supervisor.preloaded.run_in_fork import NO_TOKEN, THREADS, TOKEN, is_program
from zerotoolsd.users.job_user import JobUser

COMMON = ("zerotoolsd.trainer.process:set_library_defaults",)
TORCH = (
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "zerotoolsd.trainer.session",
    "zerotoolsd.trainer.engine_torch.engine",
)
"""The modules that ranks of the trainer import."""
MODULES = {"torch": TORCH}
"""The modules to import for each engine that may start warm."""

_PER_ATTEMPT = ("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME")
_OURS = "ZEROTOOLS_"
_FOR_SERVERS = {THREADS: "1", TOKEN: NO_TOKEN}
"""One thread, because only the forking thread survives a fork: ranks start theirs afterwards."""
_PRELOADS = ("LD_PRELOAD", "LD_AUDIT")
_PINS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_NO_PINS = ("", "false", "none", "disabled")
"""A fork server would be bound to its first processor, and so would all ranks of it."""


@dataclass(frozen=True)
class ServerKind:
    """The command and environment of a server, and the modules that it imports."""

    python: str
    modules: tuple[str, ...]
    env: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Short, the same for the same kind, and without any of its variables' values."""
        text = json.dumps([self.python, self.modules, self.env])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def kind_of(plan: Plan, spec: JobSpec) -> ServerKind:
    """Return the kind of the server from which an attempt of `spec` may be forked."""
    env = {**server_environment(plan.env), **_FOR_SERVERS}
    modules = (*COMMON, *MODULES[spec.engine])
    return ServerKind(plan.argv[0], modules, tuple(sorted(env.items())))


def server_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a rank's environment that determines its server."""
    return {
        name: value
        for name, value in env.items()
        if not name.startswith(_OURS) and name not in (*_PER_ATTEMPT, THREADS)
    }


def why_cold(plan: Plan, spec: JobSpec, way: LaunchBackend, user: JobUser | None) -> str | None:
    """Return why an attempt must not be forked from any server; None if it may."""
    if spec.engine == "script":
        return "its program comes from the user"
    if spec.engine not in MODULES:
        return f"engine {spec.engine} is not known to bear a fork"
    if spec.train.compile:
        return "train.compile starts processes and threads"
    if not is_program(plan.argv):
        return "its command is not that of the trainer"
    if way.program is not None:
        return f"supervisors are {way.why}, each in a separate unit"
    if user is not None:
        return "it is a job of another user than the daemon's"
    preload = next((name for name in _PRELOADS if plan.env.get(name)), None)
    if preload is not None:
        return f"{preload} is set, and its library may not bear a fork"
    pins = next((name for name in _PINS if plan.env.get(name, "").lower() not in _NO_PINS), None)
    if pins is not None:
        return f"{pins} is set, and OpenMP binds a process to processors when it is imported"
    if not plan.env.get(THREADS, "").isdecimal():
        return f'{THREADS} = "{plan.env.get(THREADS, "")}" is not one number'
    return None
