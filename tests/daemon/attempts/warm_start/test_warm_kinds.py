"""Who may start warm, and from which server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.daemon.daemons import make_job
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.attempts.backends.launch_backend import CHILDREN, LaunchBackend
from zerotoolsd.attempts.warm_start.warm_kinds import kind_of, why_cold
from zerotoolsd.supervisor.plan import Plan
from zerotoolsd.users.account import Account
from zerotoolsd.users.job_user import JobUser

SYSTEMD = LaunchBackend(program="/usr/bin/systemd-run", why="started by systemd")
USER = JobUser(account=Account(uid=1234, gid=1234, name="ann", home="/home/ann", groups=()))
ENV = {
    "PATH": "/usr/bin",
    "OMP_NUM_THREADS": "4",
    "CUDA_VISIBLE_DEVICES": "GPU-1",
    "ZEROTOOLS_TOKEN": "f" * 32,
    "ZEROTOOLS_RUN_DIR": "/state/jobs/1/attempt-1",
}


def a_plan(**env: str) -> Plan:
    return Plan(
        job_id=1,
        attempt=1,
        token="f" * 32,
        argv=("/usr/bin/python3", "-P", "/trainer/entry.py", "--run-dir", "/run"),
        env={**ENV, **env},
        cwd="/",
        umask=0o022,
        world_size=1,
        gpu_uuids=(),
        grace_seconds=1.0,
        straggler_seconds=1.0,
        log_limit_bytes=1,
    )


def compiled() -> JobSpec:
    return make_job("", train={"steps": 1, "batch_size": 4, "compile": True})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"spec": compiled()}, "train.compile starts processes and threads"),
        ({"user": USER}, "it is a job of another user than the daemon's"),
        ({"way": SYSTEMD}, "supervisors are started by systemd, each in a separate unit"),
        (
            {"plan": a_plan(LD_PRELOAD="/lib/trace.so")},
            "LD_PRELOAD is set, and its library may not bear a fork",
        ),
        (
            {"plan": a_plan(OMP_PROC_BIND="close")},
            "OMP_PROC_BIND is set, and OpenMP binds a process to processors when it is imported",
        ),
        (
            {"plan": a_plan(GOMP_CPU_AFFINITY="0-3")},
            "GOMP_CPU_AFFINITY is set, and OpenMP binds a process to processors when it is "
            "imported",
        ),
        ({"plan": a_plan(OMP_PROC_BIND="FALSE", OMP_PLACES="")}, None),
        ({"plan": a_plan(OMP_NUM_THREADS="2,1")}, 'OMP_NUM_THREADS = "2,1" is not one number'),
        (
            {"plan": replace(a_plan(), argv=("/usr/bin/python3", "-m", "mine"))},
            "its command is not that of the trainer",
        ),
        ({"spec": replace(make_job(""), engine="script")}, "its program comes from the user"),
        (
            {"spec": replace(make_job(""), engine="deepspeed")},
            "engine deepspeed is not known to bear a fork",
        ),
    ],
)
def test_what_is_not_safe_starts_cold_and_says_why(
    changes: dict[str, Any], why: str | None
) -> None:
    usual = {"plan": a_plan(), "spec": make_job(""), "way": CHILDREN, "user": None}
    assert why_cold(**{**usual, **changes}) == why


def test_attempts_that_differ_in_what_no_import_reads_share_a_server() -> None:
    other = a_plan(ZEROTOOLS_TOKEN="0" * 32, CUDA_VISIBLE_DEVICES="GPU-2", OMP_NUM_THREADS="1")
    assert kind_of(other, make_job("")) == kind_of(a_plan(), make_job(""))


@pytest.mark.parametrize("name", ["HF_HOME", "PYTHONPATH", "OMP_PROC_BIND", "LANG", "ANYTHING"])
def test_any_other_variable_makes_another_server(name: str) -> None:
    kind, other = kind_of(a_plan(), make_job("")), kind_of(a_plan(**{name: "x"}), make_job(""))
    assert kind != other
    assert kind.name != other.name


def test_a_server_is_executed_with_one_thread_and_room_for_a_token() -> None:
    env = dict(kind_of(a_plan(), make_job("")).env)
    assert env == {"PATH": "/usr/bin", "OMP_NUM_THREADS": "1", "ZEROTOOLS_TOKEN": "-" * 32}
