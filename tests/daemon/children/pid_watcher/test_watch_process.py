"""The process that watches another: a stop that comes before it listens is not lost."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from harness.started import Started
from zerotools.jobs.tables.adopted import AdoptedProcess
from zerotoolsd.attempts.launcher_command import watching_command
from zerotoolsd.supervisor.plan import REQUEST, TIME_LIMIT, Plan
from zerotoolsd.supervisor.procfs import boot_id, read_process
from zerotoolsd.supervisor.ranks import spawn


def test_a_time_limit_that_is_over_while_it_starts_ends_the_process(tmp_path: Path) -> None:
    child = Started(["sleep", "1000"])
    try:
        seen = read_process(child.pid)
        assert seen is not None
        process = AdoptedProcess(child.pid, seen.start_ticks, boot_id())
        (tmp_path / REQUEST).write_text(json.dumps({"reason": TIME_LIMIT}))
        plan = Plan(
            job_id=1,
            attempt=1,
            token="t",
            argv=watching_command(process, grace_seconds=60),
            env={"ZEROTOOLS_RUN_DIR": str(tmp_path)},
            cwd="/",
            umask=0o077,
            world_size=1,
            gpu_uuids=(),
            grace_seconds=60,
            straggler_seconds=60,
            log_limit_bytes=2**20,
            watches=True,
        )
        watcher = spawn(plan, 0, 0, tmp_path / "log")
        assert watcher.start is not None
        while not watcher.start.is_over():
            os.sched_yield()
        os.kill(watcher.pid, signal.SIGTERM)  # its interpreter has only begun
        _, status = os.waitpid(watcher.pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert child.wait() == -signal.SIGTERM
        watcher.start.close()
        watcher.log.close()
    finally:
        child.end()
