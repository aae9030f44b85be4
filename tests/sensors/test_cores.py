"""The cores that a process may use, in cgroups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerotools.sensors.cores import usable_cores

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
