"""What is removed of jobs that are over, and what never is."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import re
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import zerotoolsd.supervisor
from tests.daemon.asking import ask_thread
from tests.daemon.daemons import make_job
from tests.daemon.dispatch.cleaning.ended import (
    ME,
    clean,
    ids,
    is_known,
    over,
    queued,
    submit,
    tell,
)
from tests.daemon.dispatchers import Running
from tests.daemon.hung_disks import hung_disk
from tests.daemon.small_disks import SmallDisk
from tests.daemon.waiting import wait_async
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.dispatch import remove_job_files
from zerotoolsd.dispatch.remove_job_files import OURS, Mounts, NotRemovable
from zerotoolsd.file_checks import file_check_server
from zerotoolsd.file_checks.file_checker_pool import FileCheckers
from zerotoolsd.interface.api_types import CleanRequest, Conflict
from zerotoolsd.queue.lifecycle import JobStatus
from zerotoolsd.slurm.watcher.submit_and_watch import key_of
from zerotoolsd.supervisor.attempt_plan import OWN, SLURM_NAME
from zerotoolsd.users.account import user_name


def test_a_job_that_is_over_goes_with_its_logs_and_its_events(tmp_path: Path) -> None:
    state, output = tmp_path / "state", tmp_path / "out"

    async def story(it: Running) -> None:
        job = await over(it, step=5, output_dir=str(output))
        before = await it.service.events(0, 0)
        shown = await clean(it, dry_run=True)
        assert ids(shown) == [job]
        assert shown.jobs[0].size_bytes > 1000
        assert await is_known(it, job)
        assert ids(await clean(it)) == [job]
        assert not await is_known(it, job)
        assert list((state / "jobs").iterdir()) == []
        assert (output / "step-00000005" / "data").exists(), "checkpoints are the user's"
        (event,) = await it.service.events(0, 0)
        assert (event.kind, event.from_state, event.to_state) == ("clean", "succeeded", None)
        assert event.why == f"removed by {user_name(ME)}"
        assert event.seq > before[-1].seq
        assert (await submit(it)).id == job + 1, "no number is used twice"

    tell(state, story)


def test_checkpoints_in_the_state_directory_stay_until_they_are_named(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def story(it: Running) -> None:
        job = await over(it, step=5)
        output = state / "jobs" / "1" / "output"
        for answer in (await clean(it), await clean(it, job)):
            assert ids(answer) == []
            assert answer.kept[0].why == (
                f"its output is in the state directory ({output}); to remove that too, type: "
                "zerotools clean --outputs 1"
            )
        assert (output / "step-00000005").is_dir()
        done = await clean(it, job, outputs=True)
        assert done.jobs[0].outputs == (str(output),)
        assert not (state / "jobs" / "1").exists()

    tell(state, story)


def test_a_job_that_is_not_over_stays_and_goes_on(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = await submit(it, "release")
        await it.reach(job.id, "running")
        answer = await clean(it, job.id, 99)
        assert [(each.id, each.why) for each in answer.kept] == [
            (job.id, "it is running; only a finished job can be removed"),
            (99, "job 99 does not exist"),
        ]
        assert ids(await clean(it)) == []
        it.release(job.id)
        await it.reach(job.id, "succeeded")

    tell(tmp_path / "state", story)


@pytest.mark.parametrize("how", ["directly", "latest", "step", "link", "model", "command"])
def test_nothing_goes_that_a_waiting_job_names(tmp_path: Path, how: str) -> None:
    state = tmp_path / "state"
    output = state / "jobs" / "1" / "output"
    step = output / "step-00000005"
    (tmp_path / "link").symlink_to(output)
    named: dict[str, Any] = {
        "directly": {"resume_from": str(output)},
        "latest": {"resume_from": str(output / "latest")},
        "step": {"resume_from": str(step)},
        "link": {"resume_from": str(tmp_path / "link" / "best")},
        "model": {"model": {"path": str(step)}},
        "command": {"env": {"FAKE": "", "ARGS": f"--from={step}/data,x"}},
    }[how]

    async def story(it: Running) -> None:
        job = await over(it, step=5)
        spec = make_job("release", **named)
        waits = store_waiting(it, spec)
        answer = await clean(it, job, outputs=True)
        assert ids(answer) == []
        assert answer.kept[0].why.startswith(
            f"job {waits}, which is waiting retry, needs these files ("
        )
        assert (step / "data").exists()
        await it.service.cancel(waits, uid=ME)
        assert ids(await clean(it, job, outputs=True)) == [job]

    tell(state, story)


def store_waiting(it: Running, spec: JobSpec) -> int:
    """A job that waits for its next attempt, for longer than the test takes."""
    job = queued(it, spec, "/elsewhere")
    later = JobStatus(state="waiting_retry", eligible_at=time.time() + 200)
    with it.engine.store.change(job, later, "crashed", now=time.time()):
        pass
    return job.id


def test_a_job_that_was_gone_on_from_in_its_own_directory(tmp_path: Path) -> None:
    state = tmp_path / "state"
    output = state / "jobs" / "1" / "output"

    async def story(it: Running) -> None:
        first = await over(it)
        second = await over(it, step=7, output_dir=str(output))
        answer = await clean(it, first, outputs=True)
        assert answer.kept[0].why == (
            f"job {second} wrote into the same output directory; to remove both jobs, type: "
            f"zerotools clean --outputs {first} {second}"
        )
        assert ids(await clean(it, second)) == []
        assert (output / "step-00000007").is_dir()
        assert ids(await clean(it, first, second, outputs=True)) == [first, second]
        assert list((state / "jobs").iterdir()) == []

    tell(state, story)


def test_what_a_program_keeps_beside_the_logs_stays(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def story(it: Running) -> None:
        job = await over(it)
        kept = state / "jobs" / "1" / "attempt-1" / "my-weights.pt"
        kept.write_bytes(b"weights")
        assert ids(await clean(it)) == []
        assert ids(await clean(it, logs_only=True)) == []
        assert kept.exists()
        assert ids(await clean(it, job, outputs=True)) == [job]

    tell(state, story)


def test_links_are_not_followed(tmp_path: Path) -> None:
    state, away = tmp_path / "state", tmp_path / "away"

    async def story(it: Running) -> None:
        first, second = await over(it), await over(it)
        (away / "precious").mkdir(parents=True)
        (state / "jobs" / "1").rename(away / "1")
        (state / "jobs" / "1").symlink_to(away / "1")
        (state / "jobs" / "2" / "output").mkdir()
        (state / "jobs" / "2" / "output" / "link").symlink_to(away)
        answer = await clean(it, first, second, outputs=True)
        assert ids(answer) == [second]
        assert "is a link to files that may be in use elsewhere" in answer.kept[0].why
        assert (away / "precious").is_dir()
        assert (away / "1" / "attempt-1" / "rank-0.log").is_file()

    tell(state, story)


@pytest.mark.parametrize("place", ["", "jobs", "jobs/2", "jobs/2/attempt-1", "cleaning/x"])
def test_the_daemons_own_files_are_nobodys_output(tmp_path: Path, place: str) -> None:
    state = tmp_path / "state"

    async def story(it: Running) -> None:
        job = await over(it, output_dir=str(state / place))
        answer = await clean(it, job, outputs=True)
        assert "among the daemon's files; remove the output yourself" in answer.kept[0].why
        assert (state / "zerotools.db").exists()

    tell(state, story)


def test_age_number_and_state_leave_jobs_out(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        for state in ("succeeded", "failed", "succeeded"):
            await over(it, state=state)
        assert ids(await clean(it, dry_run=True)) == [1, 2, 3]
        assert ids(await clean(it, keep=1, dry_run=True)) == [1, 2]
        assert ids(await clean(it, keep=5, dry_run=True)) == []
        assert ids(await clean(it, states=frozenset({"failed"}), dry_run=True)) == [2]
        assert ids(await clean(it, older_than_seconds=3600, dry_run=True)) == []
        answer = await clean(it, 3, 1, older_than_seconds=3600)
        assert {each.why for each in answer.kept} == {
            "it is excluded by the options for state, age or number of jobs to keep"
        }

    tell(tmp_path / "state", story)


def test_logs_alone_go_and_the_record_stays(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def story(it: Running) -> None:
        job = await over(it, step=5)
        assert ids(await clean(it, logs_only=True)) == [job]
        assert not it.service.run_dir(job, 1).exists()
        view = await it.service.job(job)
        assert view.progress is not None
        assert view.latest_checkpoint is not None
        assert Path(view.latest_checkpoint["path"]).is_dir()
        assert ids(await clean(it, logs_only=True)) == []

    tell(state, story)


def test_two_cleans_at_once_remove_a_job_once(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        jobs = [await over(it) for _ in range(3)]
        answers = await asyncio.gather(*(clean(it, *jobs) for _ in range(3)))
        assert sorted(job for answer in answers for job in ids(answer)) == jobs
        kept = {each.why for answer in answers for each in answer.kept}
        assert kept == {f"job {job} does not exist" for job in jobs}

    tell(tmp_path / "state", story)


def test_a_job_that_names_what_is_being_removed_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def story(it: Running) -> None:
        await over(it, step=5)
        output = state / "jobs" / "1" / "output"
        it.engine.cleaner._being_removed.add(1)
        with pytest.raises(Conflict, match="it belongs to job 1, which is being removed"):
            await submit(it, output_dir=str(output / "below"))
        it.engine.cleaner._being_removed.clear()
        await submit(it, output_dir=str(output / "below"))

    tell(state, story)


def test_what_cannot_be_removed_is_said_and_goes_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    output = state / "jobs" / "1" / "output"

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    async def begin(it: Running) -> None:
        job = await over(it, step=5)
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", refuse)
            answer = await clean(it, job, outputs=True)
        assert answer.kept[0].why == (
            f"{state}/jobs/1/attempt-1: Permission denied; the next zerotools clean, "
            "or start of the daemon, removes the job"
        )
        with pytest.raises(Conflict, match="is being removed"):
            await submit(it, output_dir=str(output / "below"))

    async def go_on(it: Running) -> None:
        async def gone() -> bool:
            return not await is_known(it, 1)

        await wait_async(gone, "job 1 to be gone")
        assert not output.exists()

    tell(state, begin)
    tell(state, go_on)


def test_names_that_are_not_utf8_go_like_others(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def story(it: Running) -> None:
        job = await over(it, step=5)
        odd = os.fsdecode(b"ck-\xe9t\xe9\n\x1b[31m")
        (state / "jobs" / "1" / "output" / odd).mkdir()
        (state / "jobs" / "1" / odd).write_bytes(b"weights")
        answer = await clean(it, job)
        assert "to remove that too" in answer.kept[0].why
        answer = await clean(it, job, outputs=True)
        assert json.loads(json.dumps(answer.to_json()))["jobs"][0]["id"] == job
        assert list((state / "jobs").iterdir()) == []

    tell(state, story)


def test_names_that_only_begin_like_ours_are_the_programs(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = await over(it)
        kept = it.service.run_dir(job, 1) / "evaluation-model.pt"
        kept.write_bytes(b"weights")
        assert ids(await clean(it)) == []
        kept.rename(kept.with_name("eval.u32.index"))
        assert ids(await clean(it)) == [job]

    tell(tmp_path / "state", story)


@pytest.mark.parametrize("place", ["", OWN])
def test_the_word_of_a_job_under_slurm_is_no_output(place: str, tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = await over(it)
        directory = it.service.run_dir(job, 1).parent / place
        directory.mkdir(exist_ok=True)
        key_of(directory.parent if place else directory, "x")
        assert (directory / SLURM_NAME).exists()
        assert ids(await clean(it)) == [job]

    tell(tmp_path / "state", story)


def test_other_users_jobs_stay(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = await over(it)
        answer = await it.service.clean(CleanRequest(jobs=(job,)), uid=ME + 1, of=ME + 1)
        assert answer.kept[0].why == f"it belongs to {user_name(ME)}"
        assert answer.kept[0].name == f"job-{job}"  # others do not see what it is called
        answer = await it.service.clean(CleanRequest(), uid=ME + 1, of=ME + 1)
        assert (answer.jobs, answer.kept) == ((), ())  # all that are over, of one's own

    tell(tmp_path / "state", story)


def test_each_file_that_a_supervisor_names_is_known_to_be_ours() -> None:
    sources = Path(zerotoolsd.supervisor.__path__[0]).rglob("*.py")
    said = re.compile(r'^[A-Z_]+ = "([a-z-]+\.(?:json|jsonl|log|sock))"$', re.MULTILINE)
    names = {name for source in sources for name in said.findall(source.read_text())}
    assert {"heartbeats.json", "exit.json", "closing.log"} <= names
    assert [name for name in sorted(names) if not OURS.fullmatch(name)] == []


MOUNTS = b"""\
1 0 8:1 / / rw - ext4 /dev/a rw
2 1 8:2 / /data rw - ext4 /dev/b rw
3 1 8:2 /homes/anna /home/anna rw - ext4 /dev/b rw
4 1 8:2 /homes /srv/my\\040homes rw - ext4 /dev/b rw
5 1 0:9 / /mnt rw - tmpfs none rw
6 1 8:3 /sub /only rw - ext4 /dev/c rw
7 1 8:1 / /rootfs rw - ext4 /dev/a rw
"""


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/etc/x", "/etc/x"),
        ("/rootfs/etc/x", "/etc/x"),
        ("/rootfs", "/"),
        ("/data/homes/anna/x", "/data/homes/anna/x"),
        ("/home/anna/x", "/data/homes/anna/x"),
        ("/home/anna", "/data/homes/anna"),
        ("/home/annabel", "/home/annabel"),
        ("/srv/my homes/anna/x", "/data/homes/anna/x"),
        ("/mnt/x", "/mnt/x"),
        ("/only/x", "/only/x"),
        ("relative", "relative"),
        ("--from=/data/x", "--from=/data/x"),
    ],
)
def test_a_path_is_named_by_the_first_mount(path: str, name: str) -> None:
    assert Mounts(MOUNTS).first_name(path) == name


def test_where_nothing_is_known_a_path_stays_as_it_is() -> None:
    assert Mounts(b"").first_name("/home/anna/x") == "/home/anna/x"
    assert Mounts().first_name("/") == "/"


LOOKS = {look.__name__: look for look in remove_job_files.CLEANING_LOOKS}


def test_what_was_seen_comes_back_as_it_is(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = it.engine.store.job(await over(it, step=5))
        attempts = it.engine.store.attempts(job.id)
        seen = remove_job_files.removable_files(str(it.engine.jobs_dir), job, attempts)
        files = remove_job_files.files_in(seen)
        assert files == remove_job_files.job_files(it.engine.jobs_dir, job, attempts)
        said = remove_job_files.mentioned_paths(job.spec_text, job.output_dir)
        assert remove_job_files.named_paths_in(said) == remove_job_files.paths_in_job_file(
            job.spec_text, job.output_dir
        )
        among = replace(job, output_dir=str(tmp_path / "state" / "jobs"))
        with pytest.raises(NotRemovable, match="among the daemon's files"):
            remove_job_files.files_in(
                remove_job_files.removable_files(str(it.engine.jobs_dir), among, attempts)
            )

    tell(tmp_path / "state", story)


def test_an_error_of_the_system_keeps_its_number_and_its_file() -> None:
    async def story() -> None:
        def fail() -> None:
            raise FileNotFoundError(errno.ENOENT, "not there", "/some/file")

        with pytest.raises(FileNotFoundError) as raised:
            await ask_thread(20, fail)
        error = raised.value
        assert (error.errno, error.strerror, error.filename) == (2, "not there", "/some/file")

    asyncio.run(story())


def test_a_path_that_never_answers_leaves_no_thread_and_no_lock_behind(tmp_path: Path) -> None:
    way = file_check_server.start_check_server(LOOKS)
    with hung_disk(tmp_path / "disk") as disk:
        if disk is None:
            way.close()
            pytest.skip("no file system may be mounted here")
        before = threading.active_count()
        lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX)
        disk.hang()

        async def story() -> None:
            asked = FileCheckers(way, LOOKS)
            with pytest.raises(TimeoutError):
                await asked.ask(
                    0.3, remove_job_files.mentioned_paths, "{}", str(disk.door / "output")
                )
            await asked.close()

        asyncio.run(story())
        assert threading.active_count() == before
        os.close(lock)
        again = os.open(tmp_path / "lock", os.O_RDWR)
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(again)


def test_a_full_disk_is_cleaned(small_disk: SmallDisk) -> None:
    async def story(it: Running) -> None:
        first, second = await over(it), await over(it)
        assert it.engine.store.disk_reserve.reserve()  # as in each round of the loop
        small_disk.fill()
        assert ids(await clean(it)) == [first, second]
        assert not await is_known(it, first)
        small_disk.free()

    tell(small_disk.path / "state", story)
