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

from harness.fake_gpu_probe import fake_gpu
from harness.started import Started
from tests.daemon.attempts.test_orphan_processes import TOKEN, traces
from zerotools.sensors.snapshot import Gpu, GpuProcess
from zerotoolsd.app.run_daemon import ALL_LOOKS
from zerotoolsd.file_checks import file_check_server
from zerotoolsd.file_checks.file_checker_pool import FileCheckers
from zerotoolsd.resources import leaked_gpu_memory
from zerotoolsd.resources.leaked_gpu_memory import (
    LeakedMemory,
    LeakVerdict,
    LeftProcess,
    Roots,
    Suspects,
    Table,
    can_be_seen,
    find_suspects,
    holders_phrase,
    memory_left,
    normal_bytes,
    suspected_holders,
)
from zerotoolsd.supervisor.procfs import Process, all_processes, read_process

GIB = 2**30
UID = os.geteuid()


def look(run: Path, running: Roots = (), table: Table = all_processes) -> Suspects:
    return suspected_holders(str(run), TOKEN, running, os.getpid(), table, all_hold)


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
    tree = json.loads(json.dumps(find_suspects(str(tmp_path), TOKEN, [], os.getpid())))
    found = Suspects.from_json(tree)
    assert found.ours[worker.pid].device is None
    assert Suspects.from_json(found.to_json()) == found


def test_the_daemon_has_it_looked_for_by_a_process_that_may_hang(
    tmp_path: Path, worker: Process
) -> None:
    way = file_check_server.start_check_server(ALL_LOOKS)

    async def story() -> None:
        lookers = FileCheckers(way, ALL_LOOKS)
        where = str(tmp_path), TOKEN, [(worker.pid, 1)], os.getpid()
        tree = await lookers.ask(20, find_suspects, *where)
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
    yield found._replace(parent=1, start_ticks=2**40, name="pt\x1b[2J_worker")
    started.end()


def orphans(tmp_path: Path, *table: Process, hold: bool = True) -> list[LeftProcess]:
    there = {process.pid: process for process in table}
    holders = all_hold if hold else lambda them: {}
    found = suspected_holders(str(tmp_path), TOKEN, [], os.getpid(), lambda: dict(there), holders)
    return list(found.orphans)


def test_who_has_lost_its_parent_since_and_holds_a_device_may_be(
    tmp_path: Path, orphan: Process
) -> None:
    traces(tmp_path, [])
    (found,) = orphans(tmp_path, orphan)
    assert found == LeftProcess(orphan.pid, "pt[2J_worker", UID, "/dev/nvidia1")
    # parent 0: whatever process 9 of this machine is, this one has not lost its parent
    manager = orphan._replace(pid=9, parent=0, name="systemd")
    adopted = orphan._replace(parent=9)
    assert [each.pid for each in orphans(tmp_path, manager, adopted)] == [orphan.pid]
    assert orphans(tmp_path, manager._replace(name="bash"), adopted) == []
    assert orphans(tmp_path, orphan._replace(start_ticks=0)) == []  # it was there before
    assert orphans(tmp_path, orphan._replace(state="Z")) == []
    assert orphans(tmp_path, orphan._replace(parent=0)) == []
    assert orphans(tmp_path, orphan, hold=False) == []


def test_without_a_record_of_this_boot_nobody_may_be(tmp_path: Path, orphan: Process) -> None:
    assert orphans(tmp_path, orphan) == []


def said(left: LeakedMemory, found: Suspects) -> str:
    return holders_phrase(left, found, fake_gpu(1))


def test_who_is_in_the_driver_s_list_is_named_with_its_memory() -> None:
    found = Suspects({4711: LeftProcess(4711, "python", 61234), 5: LeftProcess(5, "sh", 61234)})
    left = LeakedMemory(LeakVerdict.LEFT, int(12.3 * GIB), 0, (4711,))
    assert (
        said(left, found) == "pid 4711 (python) of uid 61234 with 12.3 GiB (to end it: kill 4711)"
    )
    both = LeakedMemory(LeakVerdict.LEFT, None, 0, (4711, 5))
    assert said(both, found) == (
        "pid 4711 (python) of uid 61234, pid 5 (sh) of uid 61234 (to end them: kill 4711 5)"
    )


def test_who_may_hold_what_nobody_is_listed_for_is_named_with_what_it_has_open() -> None:
    left = LeakedMemory(LeakVerdict.LEFT, 0, 12 * GIB)
    worker = LeftProcess(4712, "pt_data_worker", 61234, "/dev/nvidia1")
    for found in (Suspects({4712: worker}), Suspects({}, [worker])):
        assert said(left, found) == (
            "12.0 GiB of memory, perhaps of pid 4712 (pt_data_worker) of uid 61234, which has "
            "/dev/nvidia1 open (to end it: kill 4712)"
        )
    many = [replace(worker, pid=pid) for pid in range(1, 7)]
    assert "and 2 more, which have /dev/nvidia1 open (to end them: kill 1 2 3 4)" in said(
        left, Suspects({}, many)
    )


def test_what_no_process_has_is_the_driver_s_to_give_back() -> None:
    left = LeakedMemory(LeakVerdict.LEFT, 0, 12 * GIB)
    idle = Suspects({5: LeftProcess(5, "sh", 61234)})  # it has no device open
    assert said(left, idle) == said(left, Suspects())
    assert said(left, Suspects()) == (
        "12.0 GiB of memory that no visible process holds (to free it: zerotools drain, and when "
        "nothing runs, nvidia-smi --gpu-reset -i 1)"
    )


def process(pid: int) -> Process:
    return Process(pid=pid, parent=1, state="S", start_ticks=pid, rss_bytes=0)


def opened(proc: Path, pid: int, *targets: str) -> None:
    directory = proc / str(pid) / "fd"
    directory.mkdir(parents=True)
    for number, target in enumerate(targets):
        (directory / str(number)).symlink_to(target)


def test_those_are_found_that_have_a_device_of_one_gpu_open(tmp_path: Path) -> None:
    opened(tmp_path, 7, "socket:[3]", "/dev/nvidia1", "/dev/nvidia0", "/dev/nvidiactl")
    opened(tmp_path, 8, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-caps/nvidia-cap1")
    opened(tmp_path, 9, "/dev/null", "/dev/nvidia12 (deleted)")
    there = [process(pid) for pid in (7, 8, 9, 10)]
    assert leaked_gpu_memory.gpu_file_holders(there, proc=tmp_path) == {7: "/dev/nvidia0"}


def test_what_is_not_one_s_own_or_has_ended_is_passed_over(tmp_path: Path) -> None:
    assert leaked_gpu_memory.gpu_file_holders([process(7)], proc=tmp_path) == {}
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "fd").write_text("no directory")
    assert leaked_gpu_memory.gpu_file_holders([process(8)], proc=tmp_path) == {}


def test_a_real_process_that_holds_one(tmp_path: Path) -> None:
    device = tmp_path / "nvidia3"
    device.touch()
    command = [sys.executable, "-I", "-S", "-c", "input()"]
    with device.open() as file:
        started = Started(
            command, stdin=subprocess.PIPE, pass_fds=(file.fileno(),), stdout=subprocess.DEVNULL
        )
    found = read_process(started.pid)
    assert found is not None
    own = read_process(os.getpid())
    assert own is not None
    prefix = str(tmp_path / "nvidia")
    assert leaked_gpu_memory.gpu_file_holders([own, found], prefix) == {started.pid: str(device)}
    started.end()


LIMIT = GIB // 2


def gpu(used: float, *processes: tuple[int, float | None]) -> Gpu:
    listed = [GpuProcess(pid, None if size is None else int(size * GIB)) for pid, size in processes]
    return fake_gpu(0, used_gib=used, processes=listed)


def look_at_memory(
    used: float,
    *processes: tuple[int, float | None],
    ours: tuple[int, ...] = (),
    baseline: int | None = None,
    given: bool = False,
) -> LeakedMemory:
    return memory_left(gpu(used, *processes), ours, LIMIT, baseline, given=given)


def test_a_gpu_that_is_as_it_was_is_free() -> None:
    assert look_at_memory(0.4).verdict is LeakVerdict.FREE
    assert (
        look_at_memory(3.0, baseline=int(2.9 * GIB)).verdict is LeakVerdict.FREE
    )  # what its driver keeps


def test_what_strangers_hold_who_came_meanwhile_is_theirs() -> None:
    assert look_at_memory(30.4, (7, 20.0), (8, 10.0)).verdict is LeakVerdict.FREE


def test_what_a_process_of_the_attempt_holds_is_left() -> None:
    found = look_at_memory(30.4, (7, 20.0), (8, 10.0), ours=(7,))
    assert found == LeakedMemory(LeakVerdict.LEFT, 20 * GIB, 0, (7,))
    assert (
        look_at_memory(0.6, (7, 0.3), ours=(7,)).verdict is LeakVerdict.FREE
    )  # a GPU is given away so


def test_what_no_process_holds_is_left_where_none_is_there() -> None:
    assert look_at_memory(12.3) == LeakedMemory(LeakVerdict.LEFT, 0, int(12.3 * GIB))
    assert look_at_memory(3.0, baseline=GIB) == LeakedMemory(LeakVerdict.LEFT, 0, 3 * GIB)
    both = look_at_memory(12.0, (7, 2.0), ours=(7,))
    assert (both.verdict, both.size) == (LeakVerdict.LEFT, 12 * GIB)


def test_where_nvml_lists_no_processes_what_is_in_use_is_nobodys() -> None:
    seen = memory_left(gpu(12.3), (), LIMIT, None, lists=False)
    assert seen.verdict is LeakVerdict.UNKNOWN
    assert memory_left(gpu(0.2), (), LIMIT, None, lists=False).verdict is LeakVerdict.FREE


def test_what_processes_may_hold_that_are_there_nobody_knows() -> None:
    """Managed memory is in use, and in nobody's list."""
    assert look_at_memory(30.0, (8, 10.0)).verdict is LeakVerdict.UNKNOWN
    assert look_at_memory(30.0, (8, None)).verdict is LeakVerdict.UNKNOWN


def test_a_job_that_has_the_gpu_may_hold_it_though_nvml_lists_nobody() -> None:
    assert look_at_memory(30.0, given=True).verdict is LeakVerdict.UNKNOWN
    assert look_at_memory(30.0, (7, 20.0), ours=(7,), given=True).verdict is LeakVerdict.LEFT
    assert look_at_memory(0.4, given=True).verdict is LeakVerdict.FREE


def test_a_process_of_the_attempt_whose_memory_is_not_told_is_left() -> None:
    assert look_at_memory(30.0, (7, None), ours=(7,)) == LeakedMemory(
        LeakVerdict.LEFT, None, 0, (7,)
    )


def test_normal_is_a_little_more_than_before_or_what_a_gpu_may_have() -> None:
    assert normal_bytes(LIMIT, None) == normal_bytes(LIMIT, 0) == LIMIT
    assert normal_bytes(LIMIT, GIB) == GIB + 2**28


@pytest.mark.parametrize(
    "changes", [{"error": "lost"}, {"mig_instances": ()}, {"memory_used_bytes": None}]
)
def test_some_are_not_seen(changes: dict[str, object]) -> None:
    assert can_be_seen(gpu(1.0))
    assert not can_be_seen(replace(gpu(1.0), **changes))  # type: ignore[arg-type]
