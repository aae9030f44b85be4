"""Questions about files, asked of processes that may hang."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from tests.daemon.asking import ask_thread
from tests.daemon.hung_disks import hung_disk
from tests.daemon.users.other_users import AS_ROOT, OTHER_UID, UID, open_directory, user_of
from tests.daemon.waiting import wait_async
from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.mounts import MountPoint, read_mounts
from zerotoolsd.file_checks import file_check_server, file_checker_pool
from zerotoolsd.file_checks.file_checker_pool import FileCheckers, SlowCheck


def pid_of_looker() -> int:
    return os.getpid()


def read(path: str) -> str:
    """Of a pipe that nobody writes to, for ever: as of a mount that does not answer."""
    return Path(path).read_text()


def double(value: int) -> int:
    return 2 * value


def refuse(what: str) -> None:
    raise {"file": BadFile, "request": BadRequest, "defect": ValueError}[what](f"a bad {what}")


def die() -> None:
    os._exit(3)


def descriptors() -> list[str]:
    return [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]


def who_looks() -> list[object]:
    return [os.getresuid(), os.getgroups(), os.environ.get("HOME"), len(os.environ)]


KINDS = (pid_of_looker, read, double, refuse, die, descriptors, who_looks)
LOOKS = {look.__name__: look for look in KINDS}


def tell(
    story: Callable[[FileCheckers], Awaitable[None]],
    mounted: Callable[[], Sequence[MountPoint]] = list,
) -> None:
    way = file_check_server.start_check_server(LOOKS)

    async def told() -> None:
        asked = FileCheckers(way, LOOKS, mounted)
        try:
            await story(asked)
        finally:
            await asked.close()

    asyncio.run(told())


def test_one_process_answers_everything() -> None:
    async def story(asked: FileCheckers) -> None:
        answers = await asyncio.gather(*(asked.ask(20, double, n) for n in range(50)))
        assert answers == [2 * n for n in range(50)]
        pids = {await asked.ask(20, pid_of_looker) for _ in range(3)}
        assert len(pids) == 1
        assert os.getpid() not in pids

    tell(story)


@pytest.mark.parametrize(
    ("what", "kind"), [("file", BadFile), ("request", BadRequest), ("defect", RuntimeError)]
)
def test_errors_come_back_as_they_are(what: str, kind: type[Exception]) -> None:
    async def story(asked: FileCheckers) -> None:
        for ask in (asked.ask, ask_thread):
            with pytest.raises(kind, match=f"a bad {what}"):
                await ask(20, refuse, what)
        assert await asked.ask(20, double, 4) == 8

    tell(story)


def test_what_hangs_delays_nobody_else_and_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "hangs")
    monkeypatch.setattr(file_checker_pool, "PATIENCE_SECONDS", 0.01)

    async def story(asked: FileCheckers) -> None:
        first = await asked.ask(20, pid_of_looker)
        stuck = asyncio.create_task(asked.ask(0.3, read, str(tmp_path / "hangs")))
        assert await asked.ask(20, double, 3) == 6
        assert not stuck.done()
        assert await asked.ask(20, pid_of_looker) != first
        with pytest.raises(TimeoutError):
            await stuck

        async def is_gone() -> bool:
            return not Path(f"/proc/{first}").exists()

        await wait_async(is_gone, "the process that hung to be killed")
        assert await asked.ask(20, double, 5) == 10

    tell(story)


def test_a_slow_check_is_told_from_a_mount_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_checker_pool, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(file_checker_pool, "LIFE_SECONDS", 0.1)
    os.mkfifo(tmp_path / "slow")

    async def slow(asked: FileCheckers) -> None:
        with pytest.raises(SlowCheck):
            await asked.ask(0.5, read, str(tmp_path / "slow"))
        with pytest.raises(TimeoutError) as unknown:
            await asked.ask(0.05, read, str(tmp_path / "slow"))
        assert not isinstance(unknown.value, SlowCheck), "the mounts had no time to respond"

    tell(slow)
    with hung_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("no file system may be mounted here")

        async def hung(asked: FileCheckers) -> None:
            disk.hang()
            with pytest.raises(TimeoutError) as silent:
                await asked.ask(0.5, read, str(disk.door / "file"))
            assert not isinstance(silent.value, SlowCheck)
            disk.let_go()

        tell(hung, read_mounts)


def test_no_more_than_so_many_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "hangs")
    monkeypatch.setattr(file_checker_pool, "PATIENCE_SECONDS", 0.001)
    monkeypatch.setattr(file_checker_pool, "MOST", 2)

    async def story(asked: FileCheckers) -> None:
        path = str(tmp_path / "hangs")
        stuck = [asyncio.create_task(asked.ask(60, read, path)) for _ in range(3)]

        async def both_are_slow() -> bool:
            team = asked._teams.get(None)
            return team is not None and len(team._slow) == 2

        await wait_async(both_are_slow, "two processes to have got a request")
        with pytest.raises(TimeoutError):
            await asked.ask(0.2, double, 1)
        for each in stuck:
            each.cancel()

        async def answered() -> bool:
            """Write nothing to who reads; nobody may have begun to."""
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return False
            return True

        await wait_async(answered, "a process that hangs")
        assert await asked.ask(20, double, 2) == 4

    tell(story)


def test_a_process_that_dies_is_said_and_replaced() -> None:
    async def story(asked: FileCheckers) -> None:
        with pytest.raises(RuntimeError, match="has ended"):
            await asked.ask(20, die)
        assert await asked.ask(20, double, 2) == 4

    tell(story)


def test_it_has_nothing_of_what_the_daemon_opens_later(tmp_path: Path) -> None:
    """A lock that it had would outlive the daemon, where it hangs in the kernel."""

    async def story(asked: FileCheckers) -> None:
        with (tmp_path / "daemon.lock").open("w"):
            assert str(tmp_path / "daemon.lock") not in await asked.ask(20, descriptors)

    tell(story)


def test_what_hangs_for_ever_is_not_asked_again_and_takes_few_processes(tmp_path: Path) -> None:
    with hung_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("no file system may be mounted here")

        async def story(asked: FileCheckers) -> None:
            disk.hang()
            path = str(disk.door / "file")
            for _ in range(2 * file_checker_pool.MOST):
                with pytest.raises(TimeoutError):
                    await asked.ask(0.2, read, path)
            assert await asked.ask(20, double, 4) == 8
            assert asked.dying <= 2  # one more may be asked while the first is given up
            disk.let_go()

            async def is_gone() -> bool:
                return not asked.dying

            await wait_async(is_gone, "the process that hung to end")
            with pytest.raises(OSError, match="No such file"):
                await asked.ask(20, read, path)

        tell(story)


@AS_ROOT
def test_each_user_is_looked_for_by_a_process_of_theirs() -> None:
    async def story(asked: FileCheckers) -> None:
        with open_directory() as place:
            secret = place / "secret"
            secret.write_text("root's")
            secret.chmod(0o600)
            user, other = user_of(), user_of(OTHER_UID)
            assert await asked.ask(20, who_looks, user=user) == [[UID] * 3, [UID], "/", 4]
            with pytest.raises(PermissionError):
                await asked.ask(20, read, str(secret), user=user)
            assert await asked.ask(20, read, str(secret)) == "root's"
            pids = [
                await asked.ask(20, pid_of_looker, user=each) for each in (user, other, None, user)
            ]
            assert len(set(pids)) == 3
            assert pids[0] == pids[3]

    tell(story)


def test_who_cannot_become_the_user_looks_at_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nobody = user_of(0)

    async def story(asked: FileCheckers) -> None:
        with pytest.raises(BadRequest, match="cannot be checked as its user: uid 0, gid 0"):
            await asked.ask(20, read, str(tmp_path / "file"), user=nobody)

    tell(story)


def test_a_mount_that_answers_is_not_blamed_for_a_look_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "hangs")
    monkeypatch.setattr(file_checker_pool, "PATIENCE_SECONDS", 0.01)
    mounted = [MountPoint("/", "8:1", "ext4"), MountPoint(str(tmp_path), "0:9", "nfs4")]

    async def story(asked: FileCheckers) -> None:
        (tmp_path / "file").write_text("text")
        with pytest.raises(TimeoutError):
            await asked.ask(0.2, read, str(tmp_path / "hangs"))
        assert await asked.ask(20, read, str(tmp_path / "file")) == "text"

    tell(story, lambda: mounted)


def test_one_dead_mount_takes_few_processes_whatever_is_asked_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_checker_pool, "PATIENCE_SECONDS", 0.02)
    monkeypatch.setattr(file_checker_pool, "LIFE_SECONDS", 0.1)
    with hung_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("no file system may be mounted here")

        async def story(asked: FileCheckers) -> None:
            disk.hang()
            paths = (str(disk.door / str(number)) for number in range(4 * file_checker_pool.MOST))
            first = [asked.ask(0.5, read, path) for path, _ in zip(paths, range(40), strict=False)]
            answers = await asyncio.gather(*first, return_exceptions=True)
            answers += [await _outcome(asked.ask(0.2, read, path)) for path in paths]
            assert {type(answer) for answer in answers} == {TimeoutError}
            assert asked.dying < file_checker_pool.MOST / 2
            (tmp_path / "file").write_text("of another mount")
            assert await asked.ask(20, read, str(tmp_path / "file")) == "of another mount"
            disk.let_go()

            async def is_gone() -> bool:
                return not asked.dying

            await wait_async(is_gone, "the processes that hung to end")
            with pytest.raises(OSError, match="No such file"):
                await asked.ask(20, read, str(disk.door / "file"))

        tell(story, read_mounts)


async def _outcome(asked: Awaitable[object]) -> object:
    return (await asyncio.gather(asked, return_exceptions=True))[0]
