"""Nothing goes that a job names by another path: links are followed on both sides."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.dispatch.cleaning.ended import ME, clean, ids, over, submit, tell
from tests.daemon.dispatch.test_remove_job_files import store_waiting
from tests.daemon.dispatchers import Running
from zerotoolsd.interface.api_types import Conflict


@pytest.mark.parametrize("named", ["link", "real", "other link"])
@pytest.mark.parametrize("begun", ["link", "real"])
@pytest.mark.parametrize("how", ["resume_from", "command", "bare"])
def test_a_state_directory_reached_by_a_link_protects_what_waiting_jobs_name(
    tmp_path: Path, begun: str, named: str, how: str
) -> None:
    """Daemon and job may each know it by another name."""
    home = _linked_home(tmp_path)
    step = home[named] / "jobs" / "1" / "output" / "step-00000005"
    wishes: dict[str, Any] = {
        "resume_from": {"resume_from": str(step)},
        "command": {"env": {"FAKE": "", "ARGS": f"/bin/cat --from={step}/data,x"}},
        "bare": {"env": {"FAKE": "", "ARGS": f"{step.parent}"}},
    }[how]

    async def story(it: Running) -> None:
        job = await over(it, step=5)
        waits = store_waiting(it, make_job("release", **wishes))
        answer = await clean(it, job, outputs=True)
        assert ids(answer) == []
        assert answer.kept[0].why.startswith(
            f"job {waits}, which is waiting retry, needs these files ("
        )
        assert (step / "data").exists()
        await it.service.cancel(waits, uid=ME)
        assert ids(await clean(it, job, outputs=True)) == [job]

    tell(home[begun], story)


@pytest.mark.parametrize("how", ["resume_from", "command"])
def test_so_does_one_that_is_mounted_twice(tmp_path: Path, how: str) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    bind = ["mount", "--bind", str(home), str(other)]
    if subprocess.run(bind, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount")
    step = other / "state" / "jobs" / "1" / "output" / "step-00000005"
    wishes: dict[str, Any] = {"resume_from": {"resume_from": str(step)}}
    wishes["command"] = {"env": {"FAKE": "", "ARGS": f"/bin/cat --from={step}/data,x"}}

    async def story(it: Running) -> None:
        job = await over(it, step=5)
        store_waiting(it, make_job("release", **wishes[how]))
        assert ids(await clean(it, job, outputs=True)) == []
        assert (step / "data").exists()

    try:
        tell(home / "state", story)
    finally:
        subprocess.run(["umount", "-l", str(other)], check=True)


def _linked_home(tmp_path: Path) -> dict[str, Path]:
    """One state directory, by three names."""
    home = {"real": tmp_path / "disk" / "home", "link": tmp_path / "home"}
    home["other link"] = tmp_path / "data"
    home["real"].mkdir(parents=True)
    home["link"].symlink_to(home["real"])
    home["other link"].symlink_to(tmp_path / "disk")
    return {
        "real": home["real"] / "state",
        "link": home["link"] / "state",
        "other link": home["other link"] / "home" / "state",
    }


@pytest.mark.parametrize("named", ["link", "real", "other link"])
def test_the_output_of_another_job_is_known_by_each_of_its_names(
    tmp_path: Path, named: str
) -> None:
    home = _linked_home(tmp_path)

    async def story(it: Running) -> None:
        first = await over(it)
        output = home[named] / "jobs" / str(first) / "output"
        second = await over(it, step=7, output_dir=str(output))
        answer = await clean(it, first, outputs=True)
        assert answer.kept[0].why == (
            f"job {second} wrote into the same output directory; to remove both jobs, type: "
            f"zerotools clean --outputs {first} {second}"
        )
        answer = await clean(it, second)
        assert answer.kept[0].why.startswith("its output is in the state directory (")
        assert (output / "step-00000007").is_dir()
        assert ids(await clean(it, first, second, outputs=True)) == [first, second]
        assert list((home["real"] / "jobs").iterdir()) == []

    tell(home["link"], story)


@pytest.mark.parametrize("named", ["link", "real"])
def test_a_checkpoint_that_was_reported_by_another_name_is_no_log(
    tmp_path: Path, named: str
) -> None:
    """A program may follow links before it reports a path."""
    home = _linked_home(tmp_path)

    async def story(it: Running) -> None:
        job = await over(it)
        kept = home[named] / "jobs" / str(job) / "attempt-1" / "rank-0.log"
        with sqlite3.connect(home["real"] / "zerotools.db") as database:
            record = {"outcome": "finished", "checkpoint": {"step": 3, "path": str(kept)}}
            database.execute("UPDATE attempt SET result = ?", (json.dumps(record),))
        database.close()
        answer = await clean(it, job)
        assert ids(answer) == []
        assert answer.kept[0].why.startswith("its output is in the state directory (")
        assert kept.exists()

    tell(home["link"], story)


def test_a_job_that_names_what_is_being_removed_by_its_real_path_is_refused(tmp_path: Path) -> None:
    home = _linked_home(tmp_path)

    async def story(it: Running) -> None:
        await over(it, step=5)
        it.engine.cleaner._being_removed.add(1)
        with pytest.raises(Conflict, match="it belongs to job 1, which is being removed"):
            await submit(it, output_dir=str(home["real"] / "jobs" / "1" / "output" / "below"))
        it.engine.cleaner._being_removed.clear()

    tell(home["link"], story)
