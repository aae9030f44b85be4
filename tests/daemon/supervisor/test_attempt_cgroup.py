"""The control group of an attempt: limits as the kernel is told them, and real processes in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.started import Started
from tests.daemon.supervisor.cgroups.trees import OWN, FakeTree
from tests.daemon.waiting import wait_for
from zerotoolsd.supervisor import attempt_cgroup
from zerotoolsd.supervisor.attempt_cgroup import (
    AttemptGroup,
    Delegation,
    NotDelegated,
    format_bytes,
    group_name,
    limit_settings,
    make_group,
    read_group,
)
from zerotoolsd.supervisor.exit_record.decide_outcome import Verdict, with_limits
from zerotoolsd.supervisor.start_ranks import KnownRank

TOKEN = "0123456789abcdef"
NAME = group_name(7, 2, TOKEN)
GIB = 2**30
LIMITED = "killed by its memory limit of 32 GiB"


def test_limits_are_told_in_the_words_of_the_kernel(tmp_path: Path) -> None:
    for disk, device in (("sda", "8:0"), ("nvme0n1", "259:1"), ("loop0", "7:0"), ("dm-0", "253:0")):
        (tmp_path / "sys/block" / disk).mkdir(parents=True)
        (tmp_path / "sys/block" / disk / "dev").write_text(f"{device}\n")
    wanted = {"memory": 2 * GIB, "memory_high": GIB, "processes": 9, "io_weight": 50, "io_read": 7}
    assert list(limit_settings(wanted | {"io_write": 8}, tmp_path)) == [
        ("memory.high", str(GIB)),
        ("memory.max", str(2 * GIB)),
        ("memory.oom.group", "1"),
        ("pids.max", "9"),
        ("io.weight", "default 50"),
        ("io.max", "259:1 rbps=7 wbps=8"),
        ("io.max", "8:0 rbps=7 wbps=8"),
    ]
    assert list(limit_settings({})) == []


def test_controllers_are_given_once_nobody_is_in_the_way(tmp_path: Path) -> None:
    tree = FakeTree(tmp_path, pids="10\n11\n")
    with pytest.raises(NotDelegated, match="has other processes in it"):
        Delegation(tree.own).enable_controllers({"memory"}, own=(10,))
    (tree.own / "supervisor").mkdir()
    (tree.own / "supervisor/cgroup.procs").touch()
    Delegation(tree.own).enable_controllers({"memory"}, own=(10, 11))
    assert (tree.own / "supervisor/cgroup.procs").read_text() == "11"
    assert (tree.own / "cgroup.subtree_control").read_text() == "+memory"


def test_a_limit_that_cannot_be_set_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    tree = FakeTree(tmp_path, controllers="cpu pids")
    with pytest.raises(NotDelegated, match=r"zt\.service has no memory controller"):
        Delegation(tree.own).refuse_unlimited({"memory", "pids"})
    with pytest.raises(NotDelegated, match=r"memory\.max = 5: No such file"):
        attempt_cgroup._create_group(Delegation(tree.own), NAME, {"memory": 5}, tmp_path)
    assert not (tree.own / NAME).exists()


@pytest.mark.parametrize(
    ("rank", "events", "cause"),
    [
        (
            KnownRank(1, signal.SIGKILL),
            "oom 3\noom_kill 2\n",
            f"rank 1 was {LIMITED}",
        ),
        (
            KnownRank(1, 256),
            "oom_kill 2\n",
            f"it broke; processes were {LIMITED}",
        ),
        (KnownRank(1, 256), "oom_kill 0\n", "it broke"),
    ],
)
def test_the_limit_that_was_reached_is_the_reason(
    tmp_path: Path, rank: KnownRank, events: str, cause: str
) -> None:
    (tmp_path / "memory.events").write_text(events)
    group = AttemptGroup(tmp_path, {"memory": 32 * GIB})
    assert with_limits(Verdict("crashed", "it broke", rank), group).cause == cause
    assert with_limits(Verdict("finished", "finished"), group).cause == "finished"


def test_processes_that_were_refused_are_told(tmp_path: Path) -> None:
    (tmp_path / "pids.events").write_text("max 12\n")
    group = AttemptGroup(tmp_path, {"processes": 64})
    assert with_limits(Verdict("crashed", "it broke"), group).cause == (
        "it broke; limits.processes = 64 kept it from starting a process 12 times"
    )


@pytest.mark.parametrize(
    ("count", "words"),
    [(32 * GIB, "32 GiB"), (3 * 2**29, "1.5 GiB"), (300 * 2**20, "300 MiB"), (5, "5 bytes")],
)
def test_sizes_are_told_in_units(count: int, words: str) -> None:
    assert format_bytes(count) == words


def test_a_record_names_no_group_but_the_attempt_s(tmp_path: Path) -> None:
    tree = FakeTree(tmp_path / "machine")
    other = group_name(7, 2, "another0")
    for place in (tree.own / NAME, tree.own / other, tmp_path / NAME):
        place.mkdir()
        (place / "cgroup.procs").touch()
    found = read_group(str(tree.own / NAME), TOKEN, tree.root)
    assert found == AttemptGroup(tree.own / NAME)
    for path in (None, 5, NAME, str(tree.own), str(tree.own / other), str(tmp_path / NAME)):
        assert read_group(path, TOKEN, tree.root) is None
    around = f"{tree.own}/../../../../../{NAME}"
    assert read_group(around, TOKEN, tree.root) is None
    assert read_group(str(tree.own / NAME), TOKEN, tmp_path / "nothing") is None


def test_groups_that_were_left_long_ago_are_removed(tmp_path: Path) -> None:
    old, young, other = (tmp_path / name for name in (NAME, group_name(8, 1, TOKEN), "others"))
    for place in (old, young, other):
        place.mkdir()
        os.utime(place, (1, 1))
    os.utime(young)
    attempt_cgroup._clear(tmp_path)
    assert (old.exists(), young.exists(), other.exists()) == (False, True, True)


@pytest.fixture
def real() -> Iterator[AttemptGroup]:
    """A group of the kernel's, where this machine lets the test make one."""
    try:
        group = make_group(group_name(0, os.getpid(), TOKEN), {}, ())
    except (NotDelegated, OSError) as error:
        pytest.skip(f"no control group can be made here: {error}")
    if not (group.path / "cgroup.kill").exists():
        group.remove()
        pytest.skip("this kernel has no cgroup.kill")
    yield group
    group.kill()
    assert group.remove()


BOMB = """
import os, sys
open(sys.argv[1], "w").write("0")
while True:
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        if os.environ.pop("GO", None) is None:
            os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
    else:
        os.wait()
    if len(open(sys.argv[1]).read().split()) > 20:
        import time; time.sleep(600)
"""


def test_what_forks_detaches_and_empties_its_environment_is_ended_at_once(
    real: AttemptGroup,
) -> None:
    bomb = Started([sys.executable, "-c", BOMB, real.procs_path], stdin=subprocess.DEVNULL)
    wait_for(lambda: len(real.pids()) > 20, "processes to be made")
    assert bomb.pid in real.pids()
    real.kill()
    wait_for(lambda: not real.pids(), "all of them to be gone")
    bomb.wait(timeout=20)


USER = "/user.slice/user-1.slice/user@1.service"
JOB = "zerotools.slice/zerotools-job-7-1-3f9c01aa.service"


def find(tree: FakeTree) -> Path:
    return attempt_cgroup.find_delegation(tree.root, tree.mark).directory.relative_to(tree.mount)


@pytest.mark.parametrize(
    ("own", "options", "found"),
    [
        (OWN, {}, OWN[1:]),
        (f"{USER}/{JOB}", {"marked": (USER,)}, f"{USER}/{JOB}"[1:]),
        (f"{USER}/{JOB}/ranks", {"marked": (USER,)}, f"{USER}/{JOB}"[1:]),
        (f"{OWN}/daemon", {}, OWN[1:]),  # DelegateSubgroup=daemon
        ("/", {"systemd": False}, "."),  # a container
        ("/a/b", {"systemd": False}, "a/b"),
        ("/a/b", {"systemd": False, "top": "/a"}, "b"),  # seen from inside of a namespace
    ],
)
def test_a_group_that_is_ours_is_found(
    tmp_path: Path, own: str, options: dict[str, Any], found: str
) -> None:
    assert find(FakeTree(tmp_path, own, **options)) == Path(found)


@pytest.mark.parametrize(
    ("own", "options", "why"),
    [
        (
            OWN,
            {"marked": ()},
            "systemd has not delegated the control group /system.slice",
        ),
        # It is the user's systemd to which that one above was given.
        (f"{USER}/app.slice/x.service", {"marked": (USER,)}, "systemd has not delegated"),
        ("/", {"marked": ()}, "systemd has not delegated the control group /"),
        ("/x", {"top": "/a", "systemd": False}, "the control group /x is outside"),
        ("/../x", {"systemd": False}, "the control group /../x is outside"),
    ],
)
def test_one_that_is_not_is_left_alone(
    tmp_path: Path, own: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(NotDelegated) as error:
        find(FakeTree(tmp_path, own, **options))
    assert str(error.value).startswith(why)


def test_a_machine_without_version_2_has_none(tmp_path: Path) -> None:
    with pytest.raises(NotDelegated, match="version 2 are not mounted"):
        attempt_cgroup.find_delegation(tmp_path)
    tree = FakeTree(tmp_path)
    (tree.root / "proc/self/cgroup").write_text("9:memory:/x\n")
    with pytest.raises(NotDelegated, match="the kernel lists no control group"):
        find(tree)
