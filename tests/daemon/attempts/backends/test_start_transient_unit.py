"""What systemd is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotoolsd.attempts.backends.choose_systemd_or_child import LaunchBackend
from zerotoolsd.attempts.backends.start_transient_unit import is_in_unit, unit_command, unit_name
from zerotoolsd.queue.rows import LAUNCHING, AttemptRow


def attempt_in(run_dir: str, token: str = "3f9c01aa" + "b" * 24) -> AttemptRow:
    return AttemptRow(
        job_id=7,
        number=2,
        token=token,
        state=LAUNCHING,
        run_dir=run_dir,
        gpu_uuids=(),
        resumed_from=None,
        started=None,
        ended=None,
        result=None,
    )


SYSTEM = LaunchBackend(program="/usr/bin/systemd-run", why="started by systemd")
USER = LaunchBackend(program="/usr/bin/systemd-run", why="started by systemd", of_user=True)


def test_each_attempt_has_a_unit_of_its_own_also_beside_another_daemon() -> None:
    one, other = attempt_in("/run-1"), attempt_in("/run-2", "c" * 32)
    assert unit_name(one) == "zerotools-job-7-2-3f9c01aa.service"
    assert unit_name(other) == "zerotools-job-7-2-cccccccc.service"


def test_a_job_neither_ends_with_the_daemon_nor_inherits_its_limits() -> None:
    words = unit_command(SYSTEM, attempt_in("/run"), 120.0)
    assert {"--system", "--collect", "--slice=zerotools.slice"} < set(words)
    properties = {word.partition("=")[2] for word in words if word.startswith("--property=")}
    assert {
        "KillMode=process",
        "Delegate=yes",
        "OOMPolicy=continue",
        "TimeoutStopSec=180",
        "NoNewPrivileges=yes",
        "StandardOutput=append:/run/supervisor.log",
    } < properties
    assert not any(each.startswith(("PartOf", "BindsTo", "Requires")) for each in properties)


def test_an_own_systemd_is_asked_only_for_what_it_can_do() -> None:
    text = " ".join(unit_command(USER, attempt_in("/run"), 1.0))
    assert "--user" in text
    assert "OOMScoreAdjust" not in text
    assert "CapabilityBoundingSet" not in text


def test_what_everybody_may_read_names_the_run_directory_and_no_value_of_the_job(
    tmp_path: Path,
) -> None:
    words = unit_command(SYSTEM, attempt_in(str(tmp_path)), 1.0)
    assert words[-1] == str(tmp_path)
    given = {word.partition("=")[2].partition("=")[0] for word in words if "--setenv" in word}
    assert given <= {"HOME", "LANG", "LC_ALL", "PATH", "TZ"}
    assert "3f9c01aab" not in " ".join(words)


def test_systemd_replaces_nothing_in_a_path() -> None:
    words = unit_command(SYSTEM, attempt_in("/data/$HOME/a b%n"), 1.0)
    assert words[-1] == "/data/$$HOME/a b%n"
    assert "--property=StandardError=append:/data/$HOME/a b%n/supervisor.log" in words


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("0::/zerotools.slice/zerotools-job-7-2-3f9c01aa.service", True),
        ("0::/user.slice/zerotools.slice/zerotools-job-7-2-3f9c01aa.service/ranks", True),
        ("1:name=systemd:/zerotools.slice/zerotools-job-7-2-3f9c01aa.service\n0::/", True),
        ("0::/zerotools.slice/zerotools-job-7-3-aaaaaaaa.service", False),
        ("0::/system.slice/zerotoolsd.service", False),
        ("", False),
    ],
)
def test_a_process_is_known_by_the_unit_that_it_cannot_leave(line: str, answer: bool) -> None:
    assert is_in_unit(line, "3f9c01aa" + "b" * 24) is answer
