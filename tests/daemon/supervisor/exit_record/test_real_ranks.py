"""Which rank began it, by what gloo really says to those that lose a rank."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.daemon.made_attempts import finish, make_attempt, supervise

pytestmark = [pytest.mark.torch, pytest.mark.full]

PROGRAM = Path(__file__).with_name("gloo_rank.py")
HOWS = {
    "SIGSTOP": "rank 1 did not answer the other ranks, and was killed; their error: ",
    "SIGKILL": "rank 1 was ended by signal 9 (SIGKILL)",
    "raise": "rank 1 exited with 1",
}
"""`test_first_failure` has what gloo says in each case."""


@pytest.mark.parametrize("how", HOWS)
def test_the_rank_that_began_it_is_named(tmp_path: Path, how: str) -> None:
    env = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    run = make_attempt(
        tmp_path / "run",
        "",
        argv=(sys.executable, str(PROGRAM), how),
        env=env,
        world_size=3,
        own_program=True,
    )
    process = supervise(run)
    process.wait(timeout=120)
    record = finish(run, process)
    logs = "\n".join((run / f"rank-{rank}.log").read_text() for rank in (0, 2))
    assert record["rank"] == 1, logs
    assert record["cause"].startswith(HOWS[how])
