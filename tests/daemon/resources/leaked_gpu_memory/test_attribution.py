"""Whose memory it is that is left: by processes that are told of, and by real ones."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.started import Started
from tests.daemon.attempts.leftovers.test_orphans import TOKEN, traces
from zerotools.sensors.fake import fake_gpu
from zerotoolsd.app.run_daemon import ALL_LOOKS
from zerotoolsd.file_checks import check_server
from zerotoolsd.file_checks.checkers import FileCheckers
from zerotoolsd.resources.leaked_gpu_memory.attribution import (
    LeftProcess,
    Roots,
    Suspects,
    Table,
    held_by,
    look_for_suspects,
    suspects,
)
from zerotoolsd.resources.leaked_gpu_memory.leaked_bytes import LeakVerdict, MemoryLeft
from zerotoolsd.supervisor.procfs import Process, processes, read_process

GIB = 2**30
UID = os.geteuid()


def look(run: Path, running: Roots = (), table: Table = processes) -> Suspects:
    return suspects(str(run), TOKEN, running, os.getpid(), table, all_hold)


@pytest.fixture
def worker() -> Iterator[Process]:
    """A process with the token of the attempt, whose program has begun."""
    started = Started(
        [sys.executable, "-I", "-S", "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"ZEROTOOLS_TOKEN": TOKEN},
    )
    assert started.stdout is not None
    started.stdout.readline()
    found = read_process(started.pid)
    assert found is not None
    yield found
    started.end()


def all_hold(found: Collection[Process]) -> dict[int, str]:
    return {process.pid: "/dev/nvidia1" for process in found}


def test_a_process_with_the_token_of_the_attempt_is_of_it(tmp_path: Path, worker: Process) -> None:
    traces(tmp_path, [])
    found = look(tmp_path)
    named = found.ours[worker.pid]
    assert (named.pid, named.uid, named.device) == (worker.pid, UID, "/dev/nvidia1")
    assert named.name.startswith("python")
    assert worker.pid not in [each.pid for each in found.orphans]


def test_what_a_running_attempt_has_is_not_of_one_that_is_over(
    tmp_path: Path, worker: Process
) -> None:
    """The record of what is over is a user's to write: what runs is not kept for it."""
    traces(tmp_path, [worker])
    assert worker.pid in look(tmp_path).ours
    assert worker.pid not in look(tmp_path, [(worker.pid, worker.start_ticks)]).ours
    assert worker.pid in look(tmp_path, [(worker.pid, worker.start_ticks + 1)]).ours


def test_a_process_that_looks_says_it_in_json(tmp_path: Path, worker: Process) -> None:
    traces(tmp_path, [])
    tree = json.loads(json.dumps(look_for_suspects(str(tmp_path), TOKEN, [], os.getpid())))
    found = Suspects.from_json(tree)
    assert found.ours[worker.pid].device is None
    assert Suspects.from_json(found.to_json()) == found


def test_the_daemon_has_it_looked_for_by_a_process_that_may_hang(
    tmp_path: Path, worker: Process
) -> None:
    way = check_server.start(ALL_LOOKS)

    async def story() -> None:
        lookers = FileCheckers(way, ALL_LOOKS)
        where = str(tmp_path), TOKEN, [(worker.pid, 1)], os.getpid()
        tree = await lookers.ask(20, look_for_suspects, *where)
        assert worker.pid in Suspects.from_json(tree).ours
        await lookers.close()

    traces(tmp_path, [])
    asyncio.run(story())


@pytest.fixture
def orphan() -> Iterator[Process]:
    """A process without any mark, which is told of as one that init has taken in."""
    started = Started(["cat"], stdin=subprocess.PIPE, env={})
    found = read_process(started.pid)
    assert found is not None
    yield replace(found, parent=1, start_ticks=2**40, name="pt\x1b[2J_worker")
    started.end()


def orphans(tmp_path: Path, *table: Process, hold: bool = True) -> list[LeftProcess]:
    there = {process.pid: process for process in table}
    holders = all_hold if hold else lambda them: {}
    found = suspects(str(tmp_path), TOKEN, [], os.getpid(), lambda: dict(there), holders)
    return list(found.orphans)


def test_who_has_lost_its_parent_since_and_holds_a_device_may_be(
    tmp_path: Path, orphan: Process
) -> None:
    traces(tmp_path, [])
    (found,) = orphans(tmp_path, orphan)
    assert found == LeftProcess(orphan.pid, "pt[2J_worker", UID, "/dev/nvidia1")
    manager = replace(orphan, pid=9, name="systemd")
    adopted = replace(orphan, parent=9)
    assert [each.pid for each in orphans(tmp_path, manager, adopted)] == [orphan.pid]
    assert orphans(tmp_path, replace(manager, name="bash"), adopted) == []
    assert orphans(tmp_path, replace(orphan, start_ticks=0)) == []  # it was there before
    assert orphans(tmp_path, replace(orphan, state="Z")) == []
    assert orphans(tmp_path, replace(orphan, parent=0)) == []
    assert orphans(tmp_path, orphan, hold=False) == []


def test_without_a_record_of_this_boot_nobody_may_be(tmp_path: Path, orphan: Process) -> None:
    assert orphans(tmp_path, orphan) == []


def said(left: MemoryLeft, found: Suspects) -> str:
    return held_by(left, found, fake_gpu(1))


def test_who_is_in_the_driver_s_list_is_named_with_its_memory() -> None:
    found = Suspects({4711: LeftProcess(4711, "python", 61234), 5: LeftProcess(5, "sh", 61234)})
    left = MemoryLeft(LeakVerdict.LEFT, int(12.3 * GIB), 0, (4711,))
    assert said(left, found) == "pid 4711 (python) of uid 61234 with 12.3 GiB (kill 4711 ends it)"
    both = MemoryLeft(LeakVerdict.LEFT, None, 0, (4711, 5))
    assert said(both, found) == (
        "pid 4711 (python) of uid 61234, pid 5 (sh) of uid 61234 (kill 4711 5 ends them)"
    )


def test_who_may_hold_what_nobody_is_listed_for_is_named_with_what_it_has_open() -> None:
    left = MemoryLeft(LeakVerdict.LEFT, 0, 12 * GIB)
    worker = LeftProcess(4712, "pt_data_worker", 61234, "/dev/nvidia1")
    for found in (Suspects({4712: worker}), Suspects({}, [worker])):
        assert said(left, found) == (
            "12.0 GiB of memory, perhaps of pid 4712 (pt_data_worker) of uid 61234, which has "
            "/dev/nvidia1 open (kill 4712 ends it)"
        )
    many = [replace(worker, pid=pid) for pid in range(1, 7)]
    assert "and 2 more, which have /dev/nvidia1 open (kill 1 2 3 4 ends them)" in said(
        left, Suspects({}, many)
    )


def test_what_no_process_has_is_the_driver_s_to_give_back() -> None:
    left = MemoryLeft(LeakVerdict.LEFT, 0, 12 * GIB)
    idle = Suspects({5: LeftProcess(5, "sh", 61234)})  # it has no device open
    assert said(left, idle) == said(left, Suspects())
    assert said(left, Suspects()) == (
        "12.0 GiB of memory that no process is seen to have (zerotools drain, and once nothing "
        "runs, nvidia-smi --gpu-reset -i 1 give it back)"
    )
