"""Detects mounts that respond: each mount named by a slow request is tested separately.

While such a test hangs, its mount is silent, and no request with a path there runs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

from zerotools.io.files.mounts import ReadMounts, mounts_of
from zerotoolsd.file_checks import message_frames
from zerotoolsd.file_checks.check_server import SIGN_OF_LIFE, question_of

LIFE_SECONDS = 2.0
"""Deadline in seconds for the response of a mount."""


class HungMounts:
    """`order` makes a process that reads files, and `mounted` returns the current mounts."""

    def __init__(self, order: Callable[[], socket.socket], mounted: ReadMounts) -> None:
        self._order = order
        self._mounted = mounted
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._hanging: dict[int, str] = {}
        """The tested mount, by the pidfd of the hanging process."""

    def suspect(self, named: object) -> None:
        """Test the mounts of these paths, because a request with them takes long."""
        for mount in mounts_of(named, self._mounted()) - self._asked.keys():
            if mount not in self._hanging.values():
                self._asked[mount] = asyncio.create_task(self._ask(mount))

    async def learn(self, named: object) -> bool:
        """Return whether all named mounts may be read, as far as is known; wait for running
        tests."""
        if not self._asked and not self._hanging:
            return True
        mounts = mounts_of(named, self._mounted())
        asked = [task for mount, task in self._asked.items() if mount in mounts]
        if asked:
            await asyncio.wait(asked)
        return mounts.isdisjoint(self._hanging.values())

    def is_silent(self, named: object) -> bool:
        """Return whether a named mount does not respond."""
        silent = self._hanging.values()
        return bool(silent) and not mounts_of(named, self._mounted()).isdisjoint(silent)

    @property
    def hanging(self) -> int:
        """Processes with no response for too long."""
        return len(self._hanging)

    async def close(self) -> None:
        """Ask no more; those that hang end when they can."""
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
            pidfd = os.pidfd_open(int(await message_frames.receive_from(reader)))
            writer.write(question_of(SIGN_OF_LIFE, (mount,)))
            hangs = True
            async with asyncio.timeout(LIFE_SECONDS):
                await message_frames.receive_from(reader)
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
