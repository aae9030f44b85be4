"""The check that the kernel takes a job's arguments and environment together, under the limit on
the stack that the daemon has, and its jobs after it."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping

from zerotools.jobs.tables.spec import JobSpec
from zerotools.jobs.text.exec_limits import LONGEST_STRING, room_of, room_taken, string_bytes

_ADDED_PATH = 4096
"""Length of the longest path that may be appended to a program's PYTHONPATH."""
_ADDED = 16 << 10
"""Bytes that the daemon, the supervisor and the launcher may add to the command and environment."""


def too_large(spec: JobSpec, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the error, with both sizes, if `environment` and the arguments of `spec` are too
    large."""
    own = () if spec.engine != "script" else (*spec.script.command, *spec.script.launcher_options)
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    room, taken = room_of(stack), room_taken(own, environment) + _ADDED
    if taken > room:
        yield (
            f"the job's arguments and its environment (script.command, env, captured_env: "
            f"{len(own) + len(environment):,} in all) take {taken:,} bytes at the start of a "
            f"process, and the kernel takes {room:,} here; write them to a file and pass its path"
        )
    path = string_bytes(f"PYTHONPATH={environment.get('PYTHONPATH', '')}")
    if spec.engine == "script" and path + _ADDED_PATH > LONGEST_STRING:
        yield (
            f"PYTHONPATH has {path:,} bytes, and with the path that the daemon adds the kernel "
            f"takes at most {LONGEST_STRING:,}; shorten it"
        )
