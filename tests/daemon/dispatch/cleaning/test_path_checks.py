"""What the cleaner has done by processes that may hang."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.asking import ask_thread
from tests.daemon.dispatch.cleaning.ended import over, tell
from tests.daemon.dispatchers import Running
from tests.daemon.hung_disks import hung_disk
from zerotoolsd.dispatch.cleaning import path_checks, removal
from zerotoolsd.dispatch.cleaning.removal import Stays
from zerotoolsd.file_checks import check_server
from zerotoolsd.file_checks.checkers import FileCheckers

LOOKS = {look.__name__: look for look in path_checks.CLEANING_LOOKS}


def test_what_was_seen_comes_back_as_it_is(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job = it.engine.store.job(await over(it, step=5))
        attempts = it.engine.store.attempts(job.id)
        seen = path_checks.removable_files(str(it.engine.jobs_dir), job, attempts)
        files = path_checks.files_in(seen)
        assert files == removal.files_of(it.engine.jobs_dir, job, attempts)
        said = path_checks.mentioned_paths(job.spec_text, job.output_dir)
        assert path_checks.mentions_in(said) == removal.mentions(job.spec_text, job.output_dir)
        among = replace(job, output_dir=str(tmp_path / "state" / "jobs"))
        with pytest.raises(Stays, match="among the daemon's files"):
            path_checks.files_in(
                path_checks.removable_files(str(it.engine.jobs_dir), among, attempts)
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
    way = check_server.start(LOOKS)
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
                await asked.ask(0.3, path_checks.mentioned_paths, "{}", str(disk.door / "output"))
            await asked.close()

        asyncio.run(story())
        assert threading.active_count() == before
        os.close(lock)
        again = os.open(tmp_path / "lock", os.O_RDWR)
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(again)
