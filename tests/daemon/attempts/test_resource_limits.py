"""Limits of a job: whose they are, and where they are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.daemon.supervisor.cgroups.trees import FakeTree
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.limits import LimitsSpec
from zerotoolsd.attempts.backends.choose_systemd_or_child import CHILDREN, LaunchBackend
from zerotoolsd.attempts.resource_limits import attempt_limits, declared_limits, why_refused
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.supervisor import attempt_cgroup
from zerotoolsd.supervisor.attempt_cgroup import Delegation

GIB = 2**30
UNITS = LaunchBackend(program="systemd-run", why="started by systemd")
DEFAULT = LimitsConfig(cpu_ranks=1)
STRICT = LimitsConfig(cpu_ranks=1, job_memory="8GiB", job_processes=500)


def refusal(
    tree: FakeTree, spec: LimitsSpec, config: LimitsConfig = DEFAULT, way: LaunchBackend = CHILDREN
) -> str | None:
    def find() -> Delegation:
        return attempt_cgroup.find_delegation(tree.root, tree.mark)

    return why_refused(spec, config, way, find, lambda: attempt_cgroup.mounted_hierarchy(tree.root))


def test_a_job_has_its_own_limits_and_the_daemon_s_where_it_has_none() -> None:
    own = LimitsSpec(memory="2GiB", io_weight=20, io_read="1MB")
    assert attempt_limits(own, DEFAULT) == {"memory": 2 * GIB, "io_weight": 20, "io_read": 10**6}
    assert attempt_limits(own, STRICT)["memory"] == 2 * GIB
    assert attempt_limits(LimitsSpec(), STRICT) == {"memory": 8 * GIB, "processes": 500}
    assert attempt_limits(LimitsSpec(), DEFAULT) == {}


def test_a_limit_is_kept_or_refused_and_never_left_out(tmp_path: Path) -> None:
    wants = LimitsSpec(memory="2GiB")
    assert refusal(FakeTree(tmp_path / "empty"), wants) is None
    assert refusal(FakeTree(tmp_path / "marked", marked=()), LimitsSpec()) is None
    assert refusal(FakeTree(tmp_path / "not", marked=()), wants) == (
        'limits.memory = "2GiB": cannot be enforced here, because systemd has not delegated the '
        "control group /system.slice/zt.service (Delegate=yes); start the daemon as a systemd "
        "unit with Delegate=yes (zerotools doctor shows details), or remove the limit from the "
        "job file"
    )
    shared = refusal(FakeTree(tmp_path / "shared", pids="1\n"), wants)
    assert shared is not None
    assert "has other processes in it" in shared
    theirs = refusal(FakeTree(tmp_path / "theirs", marked=()), LimitsSpec(), STRICT)
    assert theirs is not None
    assert theirs.startswith("limits.job_memory, limits.job_processes of the daemon's")


@pytest.mark.parametrize(("controllers", "is_kept"), [("memory pids io", True), ("cpu", False)])
def test_units_of_systemd_are_delegated_what_the_kernel_has(
    tmp_path: Path, controllers: str, is_kept: bool
) -> None:
    tree = FakeTree(tmp_path, marked=(), controllers=controllers)
    why = refusal(tree, LimitsSpec(processes=5), way=UNITS)
    assert (why is None) == is_kept
    assert why is None or "no pids controller" in why


def test_no_job_has_more_than_the_owner_lets_it(tmp_path: Path) -> None:
    why = refusal(FakeTree(tmp_path), LimitsSpec(memory="9GiB"), STRICT)
    assert why == (
        'limits.memory = "9GiB": the daemon allows a job at most limits.job_memory = "8GiB"'
    )
    assert refusal(FakeTree(tmp_path / "b"), LimitsSpec(memory="7GiB"), STRICT) is None


def test_what_a_job_declares_is_its_limit_unless_it_sets_one_and_no_more_than_it_may_have() -> None:
    def declared(**tables: Any) -> dict[str, int]:
        script = {"engine": "script", "script": {"command": ["true"], "directory": "/"}}
        spec = job_from_dict({**script, **tables}, source="job")
        return declared_limits(spec, LimitsConfig(job_memory="4GiB"))

    assert declared() == {}
    assert declared(memory={"host": "1GiB"}) == {"memory": 2**30}
    assert declared(memory={"host": "9GiB"}) == {"memory": 4 * 2**30}
    assert declared(memory={"host": "1GiB"}, limits={"memory": "2GiB"}) == {}
