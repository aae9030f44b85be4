"""What is removed by itself, once that is set; and a clean that a kill interrupts."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.daemon.daemons import Daemon, daemon_in, make_job
from tests.daemon.dispatch.cleaning.ended import is_known, over, tell
from tests.daemon.dispatchers import Running
from tests.daemon.waiting import wait_for
from zerotools.core.errors import BadRequest, DaemonUnreachable
from zerotoolsd.attempts import crash_points
from zerotoolsd.config.config_tables import RetentionConfig
from zerotoolsd.config.daemon_config import load_config
from zerotoolsd.dispatch import remove_job_files
from zerotoolsd.queue.store import Store


def age(state: Path, seconds: float) -> None:
    """Everything that happened so far happened so much earlier."""
    database = sqlite3.connect(state / "zerotools.db")
    with database:
        database.execute("UPDATE job SET ended = ended - ?", (seconds,))
        database.execute("UPDATE event SET time = time - ?", (seconds,))
    database.close()


def test_retention_is_off_until_it_is_set(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert dataclasses.astuple(RetentionConfig()) == (None, None, None)

    async def story(it: Running) -> None:
        outside = str(tmp_path / "out")
        first, second = await over(it, step=1, output_dir=outside), await over(it, step=2)
        age(state, 40 * 86400)
        young = await over(it)
        cleaner = it.engine.cleaner
        await cleaner.retain(RetentionConfig())
        assert (await it.service.events(0, 0))[0].seq == 1
        await cleaner.retain(RetentionConfig(logs="30d"))
        assert not it.service.run_dir(first, 1).exists()
        assert it.service.run_dir(young, 1).exists()
        await cleaner.retain(RetentionConfig(records="30d"))
        assert not await is_known(it, first)
        assert await is_known(it, second), "its checkpoints lie in the state directory"
        await cleaner.retain(RetentionConfig(events="30d"))
        assert {event.job_id for event in await it.service.events(0, 0)} == {first, young}
        assert (tmp_path / "out" / "step-00000001").is_dir()

    tell(state, story)


def test_a_retention_that_is_no_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "zerotoolsd.toml"
    path.write_text('[retention]\nrecords = "soon"\n')
    with pytest.raises(BadRequest, match=r'retention.records = "soon": must be a number'):
        load_config(path)
    path.write_text('[retention]\nrecords = "30d"\nlogs = 3600\n')
    assert load_config(path).retention == RetentionConfig(records="30d", logs=3600)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with a job that is over, its output elsewhere."""
    state = tmp_path_factory.mktemp("crashes") / "state"
    with daemon_in(state) as daemon:
        daemon.start()
        daemon.client.submit(make_job("save=5", output_dir=str(state.parent / "out")))
        daemon.wait_for_end(1)
        daemon.stop()
    return state


@pytest.mark.parametrize(
    "point", [crash_points.CLEAN_NOTED, crash_points.FILES_REMOVED, crash_points.RECORD_REMOVED]
)
def test_a_kill_in_the_middle_of_a_clean_is_repaired(
    crashed: Path, tmp_path: Path, point: str
) -> None:
    state = tmp_path / "state"
    shutil.copytree(crashed, state, symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
    with daemon_in(state) as daemon:
        daemon.start(**{crash_points.VARIABLE: point})
        with pytest.raises(DaemonUnreachable):
            daemon.client.clean({"jobs": [1]})
        daemon.wait_for_death()
        store = Store(state)
        assert bool(store.jobs()) == (point != crash_points.RECORD_REMOVED), "files go first"
        store.close()
        daemon.start()
        wait_for(lambda: is_gone(daemon), "job 1 to be gone")
        assert not any((state / "jobs").iterdir())
        assert (crashed.parent / "out" / "step-00000005").is_dir()


def is_gone(daemon: Daemon) -> bool:
    return not daemon.client.jobs() and not remove_job_files.unfinished_removals(daemon.state)
