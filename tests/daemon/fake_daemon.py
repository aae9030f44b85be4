"""zerotoolsd whose ranks are `fake_rank.py`, under an interpreter that need not have anything, and
shows the same example of every job."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.daemon.forked_supervisors import OwnFork, spawning
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.app.run_daemon import main
from zerotoolsd.interface.api_types import CheckedJob
from zerotoolsd.service.admission.interpreter_check import Needs
from zerotoolsd.service.admission.run_rank_checks import run_rank_checks as ask
from zerotoolsd.users.start_as_submitter import JobUser

FAKE_RANK = Path(__file__).with_name("fake_rank.py")
SAMPLE: dict[str, Any] = {
    "examples": [
        {
            "place": "/data/a.jsonl, line 1",
            "parts": [
                {"text": "<|user|>\n</pre><b>2 + 2?</b>\u202e\n<|assistant|>", "trained": False},
                {"text": "It is 4." + " long" * 100, "trained": True},
            ],
            "text_cut": True,
            "tokens": 109,
            "trained_tokens": 104,
            "tokens_lost": 7,
        }
    ],
    "looked_at": 3,
    "empty": 1,
    "duplicates": 1,
    "tokens": 300,
    "trained_tokens": 210,
    "lengths": [[20, 60, 2], [61, 109, 1]],
    "packed": {"sequences": 2, "length": 200, "filled": 0.75},
    "epoch": {"tokens": 30_000, "sequences": 200, "steps": 50, "operations": 7.2e17},
    "memory": "state of a rank: 12.0 MiB on the device",
}


def command(spec: JobSpec, run_dir: Path) -> tuple[str, ...]:
    """A command that forked supervisors run in a fork: `run_rank_in_fork`."""
    return (sys.executable, "-P", str(FAKE_RANK), "--run-dir", str(run_dir))


async def check_python(python: str, env: Mapping[str, str], needs: Needs, user: object) -> None:
    """Any interpreter will do."""


async def rehearse(
    spec: JobSpec, python: str, env: Mapping[str, str], user: JobUser | None, show: int
) -> CheckedJob:
    """An answer at once where examples are asked for; else that of the job's interpreter."""
    if show:
        return CheckedJob(["data.chat, first examples: 1 is cut"], SAMPLE)
    return await ask(spec, python, env, user)


if __name__ == "__main__":
    forks = OwnFork()
    status = main(
        sys.argv[1:],
        command=command,
        check_python=check_python,
        rehearse=rehearse,
        spawn=spawning(forks),
    )
    forks.end()
    sys.exit(status)
