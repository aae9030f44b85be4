"""The report for a bug has versions and findings, and no secrets."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from zerotools.jobs.doctor.bug_report import bug_report, job_packages, write_report
from zerotools.jobs.doctor.finding import problem
from zerotools.sensors.snapshot import Gpu, Host, Snapshot

HOST = Host(
    memory_total_bytes=8 << 30,
    memory_available_bytes=4 << 30,
    memory_used_bytes=4 << 30,
    swap_total_bytes=0,
    swap_used_bytes=0,
    cpu_count=2,
    load_average=(0.0, 0.0, 0.0),
)


def report_of(environment: dict[str, str], found: str = "is full") -> dict[str, Any]:
    return bug_report(
        [problem("disk", found, "free it")],
        python=sys.executable,
        snapshot=Snapshot(0.0, HOST, (Gpu(0, name="NVIDIA L4", memory_total_bytes=24 << 30),)),
        daemon_version="0.3.0",
        environment=environment,
    )


def test_it_has_versions_machine_and_findings() -> None:
    report = report_of({"HOME": "/home/anna", "NCCL_P2P_DISABLE": "1", "EDITOR": "vi"})
    assert report["daemon"] == "0.3.0"
    assert report["gpus"][0]["name"] == "NVIDIA L4"
    assert report["own_python"]["packages"]["click"]
    assert report["job_python"]["packages"]["numpy"]
    assert report["environment"] == {"NCCL_P2P_DISABLE": "1"}
    assert report["findings"] == [
        {"what": "disk", "level": "problem", "found": "is full", "do": "free it"}
    ]


def test_it_has_no_secret_and_no_home() -> None:
    secret = "hf_" + "a" * 30
    report = report_of(
        {"HOME": "/home/anna", "HF_TOKEN": secret, "HF_HOME": "/home/anna/hf"},
        found=f"https://anna:{secret}@host answers with 403; see /home/anna/log",
    )
    text = json.dumps(report)
    assert secret not in text
    assert "/home/anna" not in text
    assert report["environment"] == {"HF_HOME": "~/hf", "HF_TOKEN": "***"}


def test_it_has_no_name_of_a_machine_or_user() -> None:
    """Slurm has both in its variables, and a token under a name that few programs know."""
    report = report_of(
        {
            "HOME": "/home/ann",
            "SLURM_JWT": "a-token-of-no-known-form",
            "SLURM_JOB_NODELIST": "rack7n[1-4]",
            "SLURM_SUBMIT_HOST": "login-of-us",
            "SLURM_JOB_USER": "ann",
            "SLURM_JOB_ACCOUNT": "our-lab",
            "SLURM_LAUNCH_NODE_IPADDR": "192.0.2.7",
            "SLURM_NNODES": "4",
            "HF_HOME": "/home/anna/hf",
        }
    )
    assert report["environment"] == {
        "HF_HOME": "/home/anna/hf",
        "SLURM_JWT": "***",
        "SLURM_NNODES": "4",
    }


def test_an_older_python_says_its_packages(tmp_path: Path) -> None:
    """One that has no option -P, as those before 3.11."""
    older = tmp_path / "python3.10"
    older.write_text(
        f'#!/bin/sh\ncase "$1" in -P) exit 2;; esac\nexec {sys.executable} "$@"\n', "utf-8"
    )
    older.chmod(0o755)
    found = job_packages(str(older))
    assert isinstance(found, dict)
    assert found["packages"]["numpy"]


def test_a_python_that_does_not_start_is_named() -> None:
    assert job_packages("/nonexistent/python") == "cannot be started: No such file or directory"
    assert str(job_packages("/bin/false")).startswith("ended with status 1")


def test_a_file_that_exists_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_report(path, {"schema": "zerotools.report/1"})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_report(path, {})
    assert json.loads(path.read_text()) == {"schema": "zerotools.report/1"}
