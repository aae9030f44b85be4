"""Two daemons on one machine, as two users start them: no GPU has two jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.daemon.daemons import CONFIG, Daemon, daemon_in, make_job
from tests.daemon.lock_keepers import lock_directory
from tests.daemon.waiting import wait_for
from tests.sensors.conftest import compiled
from tests.sensors.double import Double

UUID = "GPU-8c1d0f2e"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Daemon, Daemon]]:
    """Two daemons of one machine with one GPU, which its NVML shows idle whatever happens."""
    (tmp_path / "nvml").mkdir()
    machine = Double(compiled(tmp_path / "nvml", 3), tmp_path)
    machine.says(f"gpu {UUID} 81920 0 0")
    seen = {name: machine.environment[name] for name in ("LD_LIBRARY_PATH", "NVML_DOUBLE")}
    config = CONFIG.replace('locks = ""', f'locks = "{lock_directory(tmp_path)}"')
    with ExitStack() as stack:
        daemons = [stack.enter_context(daemon_in(tmp_path / name, config)) for name in ("a", "b")]
        for daemon in daemons:
            daemon.state.mkdir(mode=0o700)
            daemon.start(**seen)
        yield daemons[0], daemons[1]


def test_the_second_waits_while_the_jobs_of_the_first_live_also_without_their_daemon(
    two: tuple[Daemon, Daemon],
) -> None:
    first, second = two
    job = make_job("release exit=0", device="cuda", gpus=1, ranks=None)
    mine = first.client.submit(job)["id"]
    first.wait_for_state(mine, "running")
    first.kill()
    supervisor = first.pids(mine)[0]
    theirs = second.client.submit(job)["id"]
    said = wait_for(lambda: second.client.job(theirs)["reason"], "the second to say why it waits")
    assert "GPU 0: in use by pid" in str(said)
    assert "outside of this queue" in str(said)
    assert second.client.job(theirs)["attempt"] is None
    (first.run_dir(mine) / "release").touch()
    second.wait_for_state(theirs, "running")
    assert supervisor not in second.pids(theirs)
    (second.run_dir(theirs) / "release").touch()
    assert second.wait_for_end(theirs)["state"] == "succeeded"
