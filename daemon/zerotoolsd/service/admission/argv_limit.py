"""Checks that the kernel accepts the arguments and the environment of a job.

The kernel limits their total size by the stack limit of the daemon, which the daemon's jobs
inherit.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping

from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.text.exec_limits import LONGEST_STRING, room_of, room_taken, string_bytes

_ADDED_PATH = 4096
"""Length of the longest path that the daemon may append to the PYTHONPATH of a job."""
_ADDED = 16 << 10
"""Bytes that the daemon, the supervisor and the launcher may add to the command and environment."""


def too_large(spec: JobSpec, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield an error with the actual and the allowed size, if the arguments of `spec` and the
    `environment` together are too large for the kernel.
    """
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
