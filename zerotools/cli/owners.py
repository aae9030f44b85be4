"""Whose a process on a GPU is: a job of ours, a stranger's, or unknown."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

RUN_DIR_VARIABLE = "ZEROTOOLS_RUN_DIR"


def process_owner(pid: int, jobs_by_run_dir: Mapping[str, str]) -> str:
    """`job 7 (tiny)`, or `ada: python train.py`.

    Ranks are known by a variable of their environment, which only their own user and root can
    read. A process that NVML names but this machine does not is one of another container.
    """
    try:
        process = psutil.Process(pid)
        user, words = process.username(), process.cmdline() or [process.name()]
    except psutil.NoSuchProcess:
        return "not visible from here (another container?)"
    except psutil.Error:
        return "not readable"
    run_dir = _run_dir(process)
    if run_dir is not None:
        return jobs_by_run_dir.get(run_dir, f"a job of another daemon ({run_dir})")
    return f"{user}: {' '.join(words)}"


def _run_dir(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(RUN_DIR_VARIABLE)
    except (psutil.Error, OSError):
        return None
