"""Sends requests about files of users to processes, with deadlines, so that the daemon never
blocks.

One process per user handles the user's requests in order, with the user's rights. If a request
takes long (`PATIENCE_SECONDS`), later requests go to another process, so a job on a hung mount
delays no other job.

A process that misses a deadline is killed. If the process is in the kernel's uninterruptible sleep,
it does not end, but it holds no resource of the daemon. Until the process has ended, the same
request is not sent again, so a client that repeats its request uses only one process. All paths on
a mount that does not respond are avoided (`HungMounts`), so different requests use few processes.
If `MOST` processes hang, no files are read until one of them has ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.io.files.mounts import ReadMounts, mounts_of, read_mounts
from zerotoolsd.file_checks import file_check_server
from zerotoolsd.file_checks.file_check_server import SIGN_OF_LIFE, Look, question_of
from zerotoolsd.users.start_as_submitter import JobUser

PATIENCE_SECONDS = 0.25
IDLE_SECONDS = 60.0
MOST = 32

MOST_OF_USER = 8
"""Largest number of processes of one user, except the daemon's user."""

Ask = Callable[..., Awaitable[Any]]
"""A function of (seconds, look, *arguments, user=None): `FileCheckers.ask`.

It returns the value of `look(*arguments)`, called with the rights of `user` (None: the daemon's
user). Raises the errors of `look`, TimeoutError, and SlowCheck.
"""


class SlowCheck(TimeoutError):
    """A check missed its deadline although the mounts of its paths respond, because the check
    itself takes too long.
    """


_KINDS = {kind.__name__: kind for kind in (BadRequest, BadFile, Unsupported)}


def value_of(answer: Mapping[str, Any]) -> Any:
    """Return the value in the reply `answer` of a process, or raise the error in it."""
    if "value" in answer:
        return answer["value"]
    if answer["error"] == OSError.__name__:
        raise OSError(answer["errno"], answer["message"], answer["filename"])
    kind = _KINDS.get(str(answer["error"]))
    raise RuntimeError(answer["message"]) if kind is None else kind(answer["message"])


@dataclass(frozen=True)
class _Question:
    data: bytes
    named: object
    deadline: float
    answer: asyncio.Future[Any]


class FileCheckers:
    """The processes that read files, for all users. `way` is the socket of the check server, and
    `mounted` reads the list of mounts.
    """

    def __init__(
        self,
        way: socket.socket,
        looks: Mapping[str, Look],
        mounted: ReadMounts = read_mounts,
    ) -> None:
        self._way = way
        self._signs = HungMounts(partial(file_check_server.request_check_process, way), mounted)
        self._names = {look: name for name, look in looks.items()}
        self._teams: dict[JobUser | None, FileCheckerPool] = {}

    async def ask(
        self, seconds: float, look: Look, *arguments: object, user: JobUser | None = None
    ) -> Any:
        """Call `look(*arguments)` in a process of `user` (None: the daemon's user), and return its
        value.

        Raises the errors of `look`, and TimeoutError.
        """
        if user not in self._teams:
            order = partial(file_check_server.request_check_process, self._way, user)
            self._teams[user] = FileCheckerPool(
                order, MOST if user is None else MOST_OF_USER, self._signs
            )
        data = question_of(self._names[look], arguments)
        return await self._teams[user].ask(seconds, data, arguments)

    @property
    def dying(self) -> int:
        """Return the number of killed processes that still exist."""
        return self._signs.hanging + sum(team.dying for team in self._teams.values())

    async def close(self) -> None:
        """Kill all processes. A process that hangs in the kernel ends only when its file system
        responds.
        """
        for team in self._teams.values():
            await team.close()
        await self._signs.close()
        self._way.close()


class FileCheckerPool:
    """At most `most` processes that read files for one user. `order` starts such a process, and
    `signs` tests mounts.
    """

    def __init__(self, order: Callable[[], socket.socket], most: int, signs: HungMounts) -> None:
        self._order = order
        self._signs = signs
        self._most = most
        self._questions: asyncio.Queue[_Question] = asyncio.Queue()
        self._workers: set[asyncio.Task[None]] = set()
        self._slow: set[asyncio.Task[None]] = set()
        self._dying: dict[int, bytes | None] = {}
        """Killed processes, with the last request of each that missed its deadline."""

    async def ask(self, seconds: float, data: bytes, named: object) -> Any:
        """Return the reply of a process to the request `data`. `named` contains the paths in
        the request.

        Raises the errors of the check, TimeoutError, and SlowCheck.
        """
        loop = asyncio.get_running_loop()
        question = _Question(data, named, loop.time() + seconds, loop.create_future())
        try:
            async with asyncio.timeout_at(question.deadline) as limit:
                if data in self._dying.values() or not await self._signs.learn(named):
                    raise TimeoutError
                self._questions.put_nowait(question)
                self._hire_if_needed()
                return value_of(await question.answer)
        except TimeoutError:
            was_tested = limit.expired() and seconds > PATIENCE_SECONDS + LIFE_SECONDS
            if was_tested and len(self._dying) < self._most and self._signs.respond(named):
                raise SlowCheck from None
            raise

    async def close(self) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for pidfd in self._dying:
            self._forget(pidfd, closing=True)

    @property
    def dying(self) -> int:
        return len(self._dying)

    def _hire_if_needed(self) -> None:
        """Start another process if a request waits and all processes have been busy for long."""
        hired = len(self._workers) + len(self._dying)
        if self._questions.empty() or self._workers > self._slow or hired >= self._most:
            return
        worker = asyncio.create_task(self._work())
        self._workers.add(worker)
        worker.add_done_callback(self._ended)

    def _ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        self._slow.discard(worker)
        if not worker.cancelled():
            self._hire_if_needed()

    async def _work(self) -> None:
        """Send requests to one child process until it misses a deadline, or until no request has
        come for some time.
        """
        link = self._order()
        link.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=link)
        pidfd: int | None = None
        missed: bytes | None = None
        try:
            pidfd = os.pidfd_open(int(await file_check_server.receive_from(reader)))
            while True:
                async with asyncio.timeout(IDLE_SECONDS):
                    question = await self._questions.get()
                missed = question.data
                await self._put(question, reader, writer)
                missed = None
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            pass  # its request has got an answer, or missed the deadline
        finally:
            writer.close()
            if pidfd is not None:
                self._end(pidfd, missed)

    async def _put(
        self, question: _Question, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if question.answer.done():  # the caller is gone
            return
        if self._signs.is_silent(question.named):
            question.answer.set_exception(TimeoutError())
            return
        worker = asyncio.current_task()
        assert worker is not None
        late = asyncio.get_running_loop().call_later(
            PATIENCE_SECONDS, self._note_slow, worker, question
        )
        try:
            writer.write(question.data)
            async with asyncio.timeout_at(question.deadline):
                answer = json.loads(await file_check_server.receive_from(reader))
        except (ConnectionError, asyncio.IncompleteReadError):
            answer = {"error": None, "message": "the process that checks files has ended"}
            _settle(question, answer)
            raise
        finally:
            late.cancel()
        self._slow.discard(worker)
        _settle(question, answer)

    def _note_slow(self, worker: asyncio.Task[None], question: _Question) -> None:
        self._slow.add(worker)
        self._signs.suspect(question.named)
        self._hire_if_needed()

    def _end(self, pidfd: int, missed: bytes | None) -> None:
        """Kill the process. It is counted by `dying` until it has ended, which may never happen."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        self._dying[pidfd] = missed
        asyncio.get_running_loop().add_reader(pidfd, self._forget, pidfd)

    def _forget(self, pidfd: int, *, closing: bool = False) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        if not closing:
            self._dying.pop(pidfd, None)
            self._hire_if_needed()


def _settle(question: _Question, answer: Mapping[str, Any]) -> None:
    if not question.answer.done():
        question.answer.set_result(answer)


LIFE_SECONDS = 2.0
"""Seconds that a mount has to respond to a test."""


class HungMounts:
    """Finds mounts that do not respond. `order` starts a process that reads files, and `mounted`
    returns the mounts.
    """

    def __init__(self, order: Callable[[], socket.socket], mounted: ReadMounts) -> None:
        self._order = order
        self._mounted = mounted
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._hanging: dict[int, str] = {}
        """The tested mount, by the pidfd of the hanging process."""

    def suspect(self, named: object) -> None:
        """Test the mounts of the paths in `named`, because a request with these paths takes
        long.
        """
        for mount in mounts_of(named, self._mounted()) - self._asked.keys():
            if mount not in self._hanging.values():
                self._asked[mount] = asyncio.create_task(self._ask(mount))

    async def learn(self, named: object) -> bool:
        """Wait for the running tests of the mounts of the paths in `named`. Return whether all
        these mounts may be read.
        """
        if not self._asked and not self._hanging:
            return True
        mounts = mounts_of(named, self._mounted())
        asked = [task for mount, task in self._asked.items() if mount in mounts]
        if asked:
            await asyncio.wait(asked)
        return mounts.isdisjoint(self._hanging.values())

    def respond(self, named: object) -> bool:
        """Return whether all mounts of the paths in `named` are known to respond: no test of these
        mounts is running, and no test has failed.
        """
        return (self._asked.keys() | set(self._hanging.values())).isdisjoint(
            mounts_of(named, self._mounted())
        )

    def is_silent(self, named: object) -> bool:
        """Return whether a mount of the paths in `named` does not respond."""
        silent = self._hanging.values()
        return bool(silent) and not mounts_of(named, self._mounted()).isdisjoint(silent)

    @property
    def hanging(self) -> int:
        """Return the number of tests of mounts that got no response in time."""
        return len(self._hanging)

    async def close(self) -> None:
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
        for pidfd in list(self._hanging):
            self._answered(pidfd)

    async def _ask(self, mount: str) -> None:
        link = self._order()
        link.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=link)
        pidfd: int | None = None
        hangs = False
        try:
            pidfd = os.pidfd_open(int(await file_check_server.receive_from(reader)))
            writer.write(question_of(SIGN_OF_LIFE, (mount,)))
            hangs = True
            async with asyncio.timeout(LIFE_SECONDS):
                await file_check_server.receive_from(reader)
            hangs = False
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            del self._asked[mount]
            if pidfd is not None and hangs:
                self._hangs(pidfd, mount)
            elif pidfd is not None:
                os.close(pidfd)

    def _hangs(self, pidfd: int, mount: str) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        self._hanging[pidfd] = mount
        asyncio.get_running_loop().add_reader(pidfd, self._answered, pidfd)

    def _answered(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        del self._hanging[pidfd]
