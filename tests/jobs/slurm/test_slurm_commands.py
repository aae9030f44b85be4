from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.slurm.fake_programs import LISTED, calls, programs
from zerotools.core.errors import BadRequest, SlurmUnreachable, Unsupported
from zerotools.jobs.slurm.slurm_commands import (
    SlurmCommands,
    job_of_scontrol,
    jobs_of_json,
    jobs_of_sacct,
    jobs_of_text,
)

TEXT = (
    "12\tPENDING\tResources\tzerotools:abc\t2\t\tmy job\n13\tCOMPLETING\tNone\t(null)\t1\tn3\tx\n"
)
SCONTROL = (
    "JobId=12 JobName=a b UserId=root(0) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 "
    "PreemptEligibleTime=2026-11-26T18:10:44 PreemptTime=2026-11-26T18:11:00 NodeList=n[1-2] "
    "NumNodes=2-2 Comment=zerotools:abc Power="
)


def test_a_job_is_handed_over_and_listed(tmp_path: Path) -> None:
    commands = programs(tmp_path, squeue=f"printf '{LISTED}'")
    assert commands.submit("#!/bin/sh\n#SBATCH --time=5\n", ["--hold"]) == "4711"
    assert calls(tmp_path, "sbatch") == ["--parsable --hold"]
    assert (tmp_path / "bin/sbatch.script").read_text().startswith("#!/bin/sh")
    found = commands.jobs(["4711"])["4711"]
    assert (found.state, found.name) == ("RUNNING", "name with\ttabs")


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (
            "sbatch: error: Batch job submission failed: Invalid account",
            BadRequest,
            "^sbatch: Batch job submission failed: Invalid account$",
        ),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller "
            "(connect failure)",
            SlurmUnreachable,
            "controller does not answer sbatch",
        ),
        (
            "sbatch: error: Socket timed out on send/recv operation",
            SlurmUnreachable,
            "does not answer",
        ),
        (
            "sbatch: fatal: Could not establish a configuration source",
            SlurmUnreachable,
            "does not answer",
        ),
    ],
)
def test_a_refusal_is_told_from_silence(
    tmp_path: Path, said: str, kind: type[Exception], words: str
) -> None:
    commands = programs(tmp_path, sbatch=f"echo '{said}' >&2; exit 1")
    with pytest.raises(kind, match=words):
        commands.submit("#!/bin/sh\n")


@pytest.mark.parametrize(
    ("stderr", "more"),
    [
        (b"squeue: error: cannot stat file /a, retrying", ": cannot stat file /a, retrying"),
        (None, ""),
    ],
)
def test_what_a_program_says_while_it_waits_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: bytes | None, more: str
) -> None:
    commands = programs(tmp_path, squeue="exit 0")
    commands.version()

    def timed_out(command: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 45, stderr=stderr)

    monkeypatch.setattr(subprocess, "run", timed_out)
    with pytest.raises(
        SlurmUnreachable, match=rf"^squeue had no answer from Slurm's controller in 45 s{more}$"
    ):
        commands.own_jobs()


def test_a_config_that_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    lost = tmp_path / "slurm.conf"
    fake = programs(tmp_path, sbatch="exec sleep 60", squeue=f"printf '{LISTED}'")
    commands = SlurmCommands({**fake.environment, "SLURM_CONF": str(lost)})
    for ask in (commands.version, commands.own_jobs, lambda: commands.submit("#!/bin/sh\n")):
        with pytest.raises(SlurmUnreachable, match=f"the file SLURM_CONF={lost} does not exist"):
            ask()
    assert not calls(tmp_path, "sbatch")
    lost.touch()
    assert [job.number for job in commands.own_jobs()] == ["4711"]


def test_an_answer_without_a_number_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnreachable, match="did not print the number of the job"):
        programs(tmp_path, sbatch="exit 0").submit("#!/bin/sh\n")


def test_an_sbatch_that_was_killed_has_not_refused(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnreachable, match="sbatch was ended by signal 9"):
        programs(tmp_path, sbatch="kill -9 $$").submit("#!/bin/sh\n")


def test_a_cluster_of_several_names_itself_behind_the_number(tmp_path: Path) -> None:
    assert programs(tmp_path, sbatch="echo '12;east'").submit("") == "12"


def test_slurm_that_is_not_here_or_too_old_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="sbatch is not in PATH"):
        SlurmCommands({"PATH": str(tmp_path)}).version()
    commands = programs(tmp_path)
    old = (tmp_path / "bin/sbatch").read_text().replace("22.05.8", "19.05.1")
    (tmp_path / "bin/sbatch").write_text(old)
    with pytest.raises(Unsupported, match=r"Slurm 19.05 is too old: zerotools needs 20.11"):
        commands.version()


def test_a_job_that_was_purged_is_not_known(tmp_path: Path) -> None:
    gone = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    commands = programs(tmp_path, squeue=gone, scontrol=gone, scancel=gone)
    assert commands.jobs(["4711"]) == {}
    assert commands.described("4711") is None
    assert commands.accounted("4711") is None
    commands.cancel("4711")


def test_newer_versions_are_asked_for_json_and_the_text_is_left_where_it_fails(
    tmp_path: Path,
) -> None:
    body = f"case \"$*\" in *--json*) echo no plugin >&2; exit 1;; esac; printf '{LISTED}'"
    commands = programs(tmp_path, squeue=body)
    new = (tmp_path / "bin/sbatch").read_text().replace("22.05.8", "24.05.1")
    (tmp_path / "bin/sbatch").write_text(new)
    assert commands.jobs(["4711"])["4711"].state == "RUNNING"
    assert [each.split()[0] for each in calls(tmp_path, "squeue")] == ["--json", "--noheader"]


def test_what_a_surrounding_job_has_is_not_passed_on(tmp_path: Path) -> None:
    commands = programs(tmp_path, sbatch="env > $0.env; echo 1")
    config = tmp_path / "slurm.conf"
    config.touch()
    given = {
        **commands.environment,
        "SLURM_JOB_ID": "9",
        "SLURM_MEM_PER_CPU": "10",
        "SLURM_CONF": str(config),
        "SBATCH_PARTITION": "mine",
        "SBATCH_TIMELIMIT": "5",
        "SBATCH_EXPORT": "ALL",
    }
    script = "#!/bin/sh\n#SBATCH --time=60\n#SBATCH --export=NIL\n"
    SlurmCommands(given).submit(script)
    seen = (tmp_path / "bin/sbatch.env").read_text()
    assert f"SLURM_CONF={config}" in seen
    assert "SBATCH_PARTITION=mine" in seen  # a default of the user's that the job leaves open
    for name in ("SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "SBATCH_TIMELIMIT", "SBATCH_EXPORT"):
        assert name not in seen


def test_lines_of_squeue() -> None:
    first, second = jobs_of_text(f"{TEXT}garbage\n")
    assert (first.number, first.state, first.reason, first.comment) == (
        "12",
        "PENDING",
        "Resources",
        "zerotools:abc",
    )
    assert first.waits
    assert not first.runs
    assert (second.comment, second.node_list) == ("", "n3")
    assert second.runs
    assert not second.is_over


@pytest.mark.parametrize(
    ("state", "number", "nodes"),
    [
        ("RUNNING", 12, {"nodes": "n[1-2]", "node_count": 2}),  # up to 23.02
        (["RUNNING"], 12, {"nodes": "n[1-2]", "node_count": {"set": True, "number": 2}}),
        (["RUNNING", "COMPLETING"], {"set": True, "number": 12}, {"nodes": "n[1-2]"}),
    ],
)
def test_the_json_of_every_version(state: object, number: object, nodes: dict[str, object]) -> None:
    tree = {"jobs": [{"job_id": number, "job_state": state, "comment": "c", **nodes}, None, {}]}
    (found,) = jobs_of_json(json.dumps(tree))
    assert (found.number, found.state, found.comment, found.node_list) == (
        "12",
        "RUNNING",
        "c",
        "n[1-2]",
    )
    assert found.completing == (isinstance(state, list) and "COMPLETING" in state)


def test_a_job_that_was_held_when_it_was_queued_again() -> None:
    (found,) = jobs_of_json(
        json.dumps({"jobs": [{"job_id": 1, "job_state": ["PENDING", "REQUEUE_HOLD"]}]})
    )
    assert found.state == "REQUEUE_HOLD"
    assert found.waits


def test_what_is_not_the_json_of_squeue_is_refused() -> None:
    for text in ("[]", '{"jobs": {}}', "slurm_load_jobs error"):
        with pytest.raises(ValueError):  # noqa: PT011  # json.loads has its own words
            jobs_of_json(text)


def test_accounting_says_who_cancelled() -> None:
    first, second = jobs_of_sacct("12|CANCELLED by 1000|0:15|n1\n13|COMPLETED|0:0|None assigned\n")
    assert (first.state, first.reason, first.is_over) == ("CANCELLED", "by 1000", True)
    assert (second.state, second.node_list) == ("COMPLETED", "")


def test_scontrol_tells_of_a_preemption() -> None:
    found = job_of_scontrol(SCONTROL)
    assert found is not None
    assert (found.number, found.preempted, found.nodes) == ("12", True, 2)
    assert job_of_scontrol("slurm_load_jobs error: Invalid job id specified") is None


def test_many_jobs_are_asked_for_in_several_requests(tmp_path: Path) -> None:
    """Linux takes no argument of more than 128 KiB."""
    commands = programs(tmp_path, squeue=r"printf '9999999\tPENDING\tNone\t\t1\t\tjob\n'")
    found = commands.jobs([str(number) for number in range(9_980_001, 10_000_000)])
    assert list(found) == ["9999999"]
    assert len(calls(tmp_path, "squeue")) == 3
