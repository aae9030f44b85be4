"""The page of `zerotools chaos`, its exit status, and what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.started import Started
from tests.daemon.waiting import wait_for
from tests.jobs.chaos import lying_program
from zerotools.cli.commands.chaos import lines_of, perform
from zerotools.cli.main import build, run
from zerotools.jobs.chaos.chaos_options import ChaosOptions
from zerotools.jobs.chaos.chaos_report import ChaosReport, Guarantee, Tally
from zerotools.jobs.chaos.inject_faults import Fault
from zerotools.jobs.chaos.own_processes import VARIABLE

RUN = [sys.executable, "-m", "zerotools", "chaos"]


def report(*promises: Guarantee, place: Path | None = None) -> ChaosReport:
    return ChaosReport(
        seed=7,
        seconds=75.0,
        faults=[Fault(1.0, "SIGKILL of a rank", "job 1"), Fault(2.0, "hold of a job", "job 2")],
        states={"succeeded": 3, "cancelled": 1},
        attempts=9,
        began=4,
        resumed=0,
        daemon_starts=3,
        tally=Tally(steps_run=120, steps_kept=100, kept_seconds=30.0, seconds=40.0),
        promises=promises,
        place=place,
    )


def test_the_page_has_every_figure_and_fits_80_columns() -> None:
    lines = list(lines_of(report(Guarantee("a holds"), Guarantee("b holds"))))
    assert max(map(len, lines)) < 80
    assert lines == [
        "",
        "fault              times",
        "SIGKILL of a rank      1",
        "hold of a job          1",
        "all                    2",
        "",
        "jobs                     4: 1 cancelled, 3 succeeded",
        "restarts                 jobs 5, daemon 2",
        "steps run                120",
        "steps kept               100 (83.3%)",
        "effective training time  75.0%",
        "took                     1 min 15 s",
        "Effective training time: from its first start to its end, a job spends this",
        "share of the time on the steps of its final result.",
        "",
        "held    a holds",
        "held    b holds",
        "",
        "All 2 promises held.",
    ]


def test_what_is_broken_is_said_with_where_to_look(tmp_path: Path) -> None:
    broken = Guarantee("b holds", ["it\x1b[2J failed\nits log", *map(str, range(6))])
    lines = list(lines_of(report(Guarantee("a holds"), broken, place=tmp_path)))
    assert lines[-11:] == [
        "broken  b holds",
        "        it\\x1b[2J failed",
        "        its log",
        *(f"        {n}" for n in range(4)),
        "        and 2 more",
        "",
        "1 of 2 promises were broken.",
        f"The queue, logs and notes are in {tmp_path}",
    ]


def test_a_program_that_loses_a_step_is_exit_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Path(str(lying_program.__file__))
    request = ChaosOptions(  # no fault comes so soon
        minutes=0.005, every=600.0, seed=1, jobs=1, directory=tmp_path, program=program
    )
    assert perform(request, as_json=False) == 1
    out = capsys.readouterr().out
    assert "\nbroken  no saved step was lost\n        job 1 (toy-1): its last state is " in out
    assert out.count("\nheld  ") == 7
    [kept] = tmp_path.iterdir()
    assert out.endswith(f"The queue, logs and notes are in {kept}\n")
    assert (kept / "state" / "zerotools.db").is_file()


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    command = [*RUN, "--directory", tmp_path, "--every", "0.1"]
    with Started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(3):  # what it does, and two faults
            assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()
        assert process.wait(30) == 130
    assert said == "note: interrupted; all started processes are stopped\n"
    assert list(tmp_path.iterdir()) == []
    assert running(tmp_path) == []


def test_a_drill_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    command = [*RUN, "--directory", tmp_path, "--every", "0.1"]
    with Started(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline()
        wait_for(lambda: running(tmp_path), "its processes to be seen")
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
    wait_for(lambda: running(tmp_path) == [], "all of it to be ended")
    assert [path.name for path in tmp_path.glob("*/state/zerotools.db")] == ["zerotools.db"]


def running(place: Path) -> list[Path]:
    """Processes of drills in `place`."""
    mark, found = os.fsencode(f"{VARIABLE}={place}"), []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += [entry] if mark in entry.read_bytes() else []
        except OSError:
            continue
    return found


def test_a_daemon_that_cannot_start_is_exit_status_5(tmp_path: Path) -> None:
    package, place = tmp_path / "path" / "zerotoolsd", tmp_path / "place"
    package.mkdir(parents=True)
    place.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("raise SystemExit('no kernel like this')")
    env = {**os.environ, "PYTHONPATH": str(package.parent)}
    with Started(
        [*RUN, "--directory", place], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        _, said = process.communicate(timeout=30)
        assert process.wait(30) == 5
    assert said == b"error: zerotoolsd cannot be started here: no kernel like this\n"
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [("--minutes", "0"), ("--minutes", "-1"), ("--minutes", "nan"), ("--jobs", "x")],
)
def test_bad_options_are_exit_status_2(
    capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert run(build(), ["chaos", option, value]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert option in said.err
