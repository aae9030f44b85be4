from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerotools.sensors.cgroup_allowance import CgroupMemory, read_cgroup_memory, usable_cores


def group(path: Path, most: str, used: str, inactive: str = "0", **files: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "memory.max").write_text(f"{most}\n")
    (path / "memory.current").write_text(f"{used}\n")
    (path / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\nslab 3\n")
    for name, text in files.items():
        (path / f"memory.{name}").write_text(text)


def group_of_version_1(path: Path, most: int, used: int, kills: int = 0, hits: int = 0) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "memory.limit_in_bytes").write_text(f"{most}\n")
    (path / "memory.usage_in_bytes").write_text(f"{used}\n")
    (path / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 7\n")
    (path / "memory.failcnt").write_text(f"{hits}\n")
    (path / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    path = tmp_path / "cgroup"
    path.write_text("4:cpu:/old\n0::/a.slice/b.service\n")
    return path


def left(proc: Path, root: Path) -> tuple[int | None, int | None]:
    found = read_cgroup_memory(proc, root)
    return found.left_bytes, found.limit_bytes


def test_the_tightest_of_all_groups_counts(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "fs"
    group(root / "a.slice/b.service", "max", "70")
    assert left(proc, root) == (None, None)
    group(root / "a.slice", "100", "90", inactive="30")
    assert left(proc, root) == (40, 100)
    group(root / "a.slice/b.service", "80", "70", inactive="5")
    assert left(proc, root) == (15, 80)
    group(root, "200", "500")
    assert left(proc, root) == (0, 200)


def test_above_memory_high_programs_stand_still_as_at_the_limit(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "fs"
    group(root / "a.slice", "100", "60", high="70\n")
    assert left(proc, root) == (10, 70)
    group(root / "a.slice", "max", "60", high="max\n")
    assert left(proc, root) == (None, None)


def test_what_each_group_met_at_limits_of_its_own_is_added_up(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "fs"
    group(
        *(root / "a.slice/b.service", "max", "70"),
        **{"events.local": "low 9\nhigh 0\nmax 2\noom 0\noom_kill 0\n"},
    )
    group(
        *(root / "a.slice", "100", "90"),
        **{"events.local": "low 0\nhigh 30\nmax 4\noom 1\noom_kill 5\noom_group_kill 0\n"},
    )
    found = read_cgroup_memory(proc, root)
    assert (found.reclaims, found.ooms) == (36, 1)


def test_what_a_job_met_at_its_own_limit_below_is_not_ours(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "fs"
    group(root / "a.slice/b.service", "100", "70", events="high 5\nmax 7\noom 3\noom_kill 3\n")
    found = read_cgroup_memory(proc, root)
    assert (found.reclaims, found.ooms) == (None, None)


def test_stalls_count_of_groups_that_have_a_limit(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "fs"
    said = "some avg10=40.00 avg60=1.00 avg300=0.00 total=9\nfull avg10={} avg60=0.50 total=3\n"
    group(root / "a.slice/b.service", "max", "70", pressure=said.format("80.00"))
    assert read_cgroup_memory(proc, root).stalled_percent is None
    group(root / "a.slice", "100", "90", pressure=said.format("31.00"))
    group(root, "1000", "90", pressure=said.format("2.00"))
    assert read_cgroup_memory(proc, root).stalled_percent == 31.0


def test_version_1_has_other_names_and_no_stalls(tmp_path: Path) -> None:
    proc, root = tmp_path / "cgroup", tmp_path / "fs"
    proc.write_text("9:name=systemd:/x\n4:memory:/docker/1\n0::/\n")
    group_of_version_1(root / "memory/docker/1", 100, 90, kills=2, hits=30)
    group_of_version_1(root / "memory", 9223372036854771712, 10**12, hits=1)
    assert read_cgroup_memory(proc, root) == CgroupMemory(17, 100, 31, 2)


def test_a_container_of_version_1_sees_its_group_as_the_root(tmp_path: Path) -> None:
    proc, root = tmp_path / "cgroup", tmp_path / "fs"
    proc.write_text("4:memory:/docker/1\n")
    group_of_version_1(root / "memory", 100, 90)
    assert left(proc, root) == (17, 100)


@pytest.mark.parametrize("said", ["", "4:cpu:/only\n", "0:/broken\n", "0::relative\n"])
def test_without_control_groups_nothing_is_known(tmp_path: Path, said: str) -> None:
    (tmp_path / "cgroup").write_text(said)
    assert read_cgroup_memory(tmp_path / "cgroup", tmp_path / "fs") == CgroupMemory()
    assert read_cgroup_memory(tmp_path / "none", tmp_path / "fs") == CgroupMemory()


def test_what_cannot_be_read_is_no_limit(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "fs"
    group(root / "a.slice", "x", "90")
    (root / "a.slice/b.service").mkdir()
    (root / "a.slice/b.service/memory.max").write_text("100")
    assert left(proc, root) == (None, None)
    group(root / "a.slice", "100", "90", inactive="none")
    assert left(proc, root) == (10, 100)


def test_of_this_process_it_is_a_number_or_nothing() -> None:
    found = read_cgroup_memory()
    assert found.left_bytes is None or 0 <= found.left_bytes <= (found.limit_bytes or 0)


AFFINITY = len(os.sched_getaffinity(0))


def cgroup(tmp_path: Path, membership: str, **files: str) -> int:
    (tmp_path / "cgroup").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "fs" / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return usable_cores(tmp_path / "cgroup", tmp_path / "fs")


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", AFFINITY), ("100000 100000", 1), ("50000 100000", 1), ("", AFFINITY)],
)
def test_a_quota_of_cgroup_2_bounds_the_cores(tmp_path: Path, quota: str, cores: int) -> None:
    assert cgroup(tmp_path, "0::/user/job\n", user__job__cpu_DOT_max=quota) == cores


def test_a_quota_of_a_parent_counts(tmp_path: Path) -> None:
    files = {"user__cpu_DOT_max": "100000 100000", "user__job__cpu_DOT_max": "max 100000"}
    assert cgroup(tmp_path, "0::/user/job\n", **files) == 1


def test_a_quota_of_cgroup_1_bounds_the_cores(tmp_path: Path) -> None:
    place = "cpu,cpuacct__box__"
    files = {
        f"{place}cpu_DOT_cfs_quota_us": "150000\n",
        f"{place}cpu_DOT_cfs_period_us": "100000\n",
    }
    assert cgroup(tmp_path, "4:cpu,cpuacct:/box\n", **files) == min(1, AFFINITY)
    files[f"{place}cpu_DOT_cfs_quota_us"] = "-1\n"
    assert cgroup(tmp_path, "4:cpu,cpuacct:/box\n", **files) == AFFINITY


def test_without_cgroups_the_affinity_counts(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none", tmp_path / "none") == AFFINITY
