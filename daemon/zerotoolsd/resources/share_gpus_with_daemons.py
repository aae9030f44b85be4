"""Shares the machine's GPUs with other daemons, by means of locks.

Before a scheduler pass over jobs that want GPUs, `lock_free_gpus` takes the gate
(`supervisor.gpu_locks`), so that no other process takes a GPU between the check and the commit of
the attempt. It then locks all free GPUs. The pass assigns GPUs to jobs, and afterwards
`release_others` releases the locks of GPUs without a job.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from zerotools.sensors.snapshot import Snapshot
from zerotoolsd.supervisor.gpu_locks import (
    GpuTaken,
    LockDirectory,
    LocksUnknown,
    NoLocks,
)
from zerotoolsd.supervisor.procfs import read_process
from zerotoolsd.users.account import user_name

GATE_SECONDS, PAUSE_SECONDS = 0.3, 0.005
"""Seconds that a round waits for the gate, and seconds between two tries."""

OFF = "gpus.locks is empty in the configuration"

log = logging.getLogger(__name__)


class GpuArbiter:
    """The GPU locks of this daemon.

    `is_ours` returns whether a live attempt of this daemon uses the GPU with a given UUID. `begins`
    returns whether the supervisor of an attempt on this GPU may still be starting. If `path` is
    empty, no locks are used.
    """

    def __init__(
        self,
        path: str,
        is_ours: Callable[[str], bool],
        begins: Callable[[str], bool] = lambda uuid: False,
    ) -> None:
        self._path = path
        self._is_ours = is_ours
        self._begins = begins
        self._locks: dict[str, int] = {}
        self.trouble: str | None = None
        """The reason why no locks are used; None if it is unknown or they are used."""
        self._logged: dict[str, str] = {}

    @asynccontextmanager
    async def lock_free_gpus(
        self, snapshot: Snapshot | None, leased: Collection[str]
    ) -> AsyncIterator[Mapping[str, str]]:
        """Lock all GPUs of `snapshot` that no other process has locked, and the GPUs in `leased`.

        Yields the reasons why all other GPUs cannot be used: UUID -> reason. The body must not let
        other tasks run. Call `release_others` afterwards, to release the GPUs that got no job.
        """
        seen = () if snapshot is None else snapshot.gpus
        gpus = {gpu.uuid for gpu in seen if gpu.uuid is not None}
        try:
            directory = self._open()
        except LocksUnknown as error:
            yield {uuid: f"cannot be locked: {error}" for uuid in gpus if uuid not in self._locks}
            return
        if directory is None:
            yield MappingProxyType({})
            return
        try:
            if not await _have_gate(directory):
                why = f"cannot be locked: {directory.gate_in_use_text()}"
                yield {uuid: why for uuid in gpus if uuid not in self._locks}
                return
            yield self._acquire({*gpus, *leased}, leased, directory)
        finally:
            directory.close()

    def _open(self) -> LockDirectory | None:
        why = None
        directory = None
        if not self._path:
            why = OFF
        else:
            try:
                directory = LockDirectory(Path(self._path), user_name)
            except NoLocks as error:
                why = str(error)
        if why is not None and why != self.trouble:
            log.warning(
                "the GPUs are not locked (%s): other users' daemons are only noticed once NVML "
                "shows memory that their jobs use",
                why,
            )
        self.trouble = why
        return directory

    def _acquire(
        self, wanted: Iterable[str], leased: Collection[str], directory: LockDirectory
    ) -> dict[str, str]:
        elsewhere = {}
        for uuid in sorted(wanted):
            fd = self._locks.get(uuid)
            if fd is not None and directory.is_current(uuid, fd):
                continue
            if fd is None and uuid in leased and self._begins(uuid):
                # This supervisor knows only an earlier daemon or none, and could not share this
                # daemon's lock.
                elsewhere[uuid] = "is being taken by a job of this queue that is starting"
                continue
            try:
                self._locks[uuid] = directory.acquire(uuid, lambda: self._is_ours(uuid))  # noqa: B023  # called at once
            except GpuTaken as error:
                elsewhere[uuid] = str(error)
                if uuid in leased:
                    self._log_once(uuid, f"{uuid}, which a job of this queue has, {error}")
            else:
                self._logged.pop(uuid, None)
                if fd is not None:  # the file was removed meanwhile
                    log.warning("the lock of %s was replaced: it was taken again", uuid)
                    os.close(fd)
        return elsewhere

    def _log_once(self, uuid: str, what: str) -> None:
        if self._logged.get(uuid) != what:
            log.warning("%s", what)
        self._logged[uuid] = what

    def lacks_locks(self, leased: Collection[str]) -> bool:
        """Return whether this daemon lacks the lock of a GPU in `leased`, for example because a
        previous daemon leased the GPU.
        """
        return bool(self._path) and any(uuid not in self._locks for uuid in leased)

    def release_others(self, leased: Collection[str]) -> None:
        for uuid in [uuid for uuid in self._locks if uuid not in leased]:
            os.close(self._locks.pop(uuid))
        for uuid in [uuid for uuid in self._logged if uuid not in leased]:
            del self._logged[uuid]

    def locks_for_supervisor(self, gpus: Collection[str]) -> dict[str, Any]:
        """Return a JSON object with which the supervisor of an attempt on `gpus` finds and takes
        their locks; empty if it needs no locks.
        """
        try:
            if not gpus or not self._has_directory():
                return {}
        except LocksUnknown:  # the supervisor finds out
            pass
        own = read_process(os.getpid())
        return {
            "directory": self._path,
            "gpus": list(gpus),
            "held": [uuid for uuid in gpus if uuid in self._locks],
            "daemon": {"pid": os.getpid(), "start_ticks": own.start_ticks if own else -1},
        }

    def _has_directory(self) -> bool:
        directory = self._open()
        if directory is not None:
            directory.close()
        return directory is not None

    def close(self) -> None:
        """Release the daemon's locks. Running attempts keep their locks."""
        self.release_others(())

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the directory of the locks, the reason why no locks are
        used, and the locked GPUs.
        """
        with suppress(LocksUnknown):
            self._has_directory()
        return {"directory": self._path, "trouble": self.trouble, "held": sorted(self._locks)}


async def _have_gate(directory: LockDirectory) -> bool:
    deadline = time.monotonic() + GATE_SECONDS
    while not directory.try_gate():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(PAUSE_SECONDS)
    return True
