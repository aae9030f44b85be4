"""After a stop nothing new of an attempt begins, whatever its shells would have run next.

Each script runs programs by `$T NAME`. A program notes that it begins, that it got SIGTERM, and
that it has saved; the note that has all of them in order is the truth.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.made_attempts import finish, make_attempt, supervise
from tests.daemon.supervisor.stop.random_scripts import a_script
from tests.daemon.waiting import wait_for
from tests.matrices import FULL
from zerotoolsd.supervisor.durable_files import write_json

PROGRAM = """
import os, pathlib, signal, sys
name, code = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
def note(what):
    with open("notes", "a") as notes:
        notes.write(f"{name} {what}\\n")
def save(*_):
    note("asked")
    while os.path.exists("saves-slowly"):
        pass
    note("saved")
    print(name, "saved", flush=True)
    os._exit(code)
signal.signal(signal.SIGTERM, save)
note("begins")
while True:
    signal.pause()
"""
SHELLS = ("bash", "dash", "zsh", "busybox sh", "ksh", "mksh")
"""Those of them that are installed run."""


@dataclass(frozen=True)
class Stopped:
    """What came of an attempt that was asked to stop."""

    record: dict[str, Any]
    notes: tuple[str, ...]
    output: tuple[str, ...]


def stop(tmp_path: Path, script: str, *first: str, shell: str = "bash", **changes: Any) -> Stopped:
    """Run `script`, and stop it once the programs `first` have begun.

    `reports` are the events that it reports before.
    """
    reports, reason = changes.pop("reports", ()), changes.pop("reason", "pause")
    begin(tmp_path)
    values = {"own_program": True, "cwd": str(tmp_path), "world_size": 1, **changes}
    env = {"PATH": os.environ["PATH"], "T": "./program", "HOME": str(tmp_path)}
    argv = (*shell.split(), "-c", script)
    run = make_attempt(tmp_path / "run", "", argv=argv, env=env, **values)
    process = supervise(run)
    wait_for(lambda: {f"{name} begins" for name in first} <= {*notes(tmp_path)}, "the programs")
    with chdir(run), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        for event in reports:
            link.sendto(json.dumps({"rank": 0, "step": 7, "event": event}).encode(), "notify.sock")
    write_json(run / "request.json", {"reason": reason})
    process.send_signal(signal.SIGTERM)
    record = finish(run, process)
    output = (run / "rank-0.log").read_text().splitlines()
    return Stopped(record, notes(tmp_path), tuple(output))


def begin(directory: Path) -> None:
    (directory / "program").write_text(f"#!{sys.executable} -IS\n{PROGRAM}")
    (directory / "program").chmod(0o755)
    (directory / "notes").touch()


def notes(directory: Path) -> tuple[str, ...]:
    return tuple((directory / "notes").read_text().splitlines())


def all_of(*names: str) -> set[str]:
    return {f"{name} {what}" for name in names for what in ("begins", "asked", "saved")}


def installed(*shells: str) -> list[Any]:
    return [
        pytest.param(
            shell,
            marks=pytest.mark.skipif(
                shutil.which(shell.split()[0]) is None, reason=f"{shell} is not installed"
            ),
        )
        for shell in shells
    ]


@pytest.mark.parametrize(
    "script",
    [
        "while :; do $T train; done",
        'sh -c "$T train; $T publish"; $T publish',
        "trap '' TERM; $T train; $T publish",
        "setsid -w $T train; nohup $T publish",
        "echo train publish | xargs -n1 $T; $T publish",
        "$T train | while read line; do echo $line; done; $T publish",
        *(
            pytest.param(script, marks=pytest.mark.full)
            for script in (
                "$T train && $T publish",
                "$T train; $T publish",
                "$T train 3 || $T publish",
                "for each in train publish; do $T $each; done",
                "($T train; $T publish); $T publish",
                "find . -name program -exec {} train \\; -exec {} publish \\;",
                "timeout 600 $T train; $T publish",
                "$T train | tee log; $T publish",
                "coproc { $T train; $T publish; }; wait; $T publish",
            )
        ),
    ],
)
def test_p12_nothing_begins_after_a_stop(tmp_path: Path, script: str) -> None:
    found = stop(tmp_path, script, "train")
    assert found.notes == ("train begins", "train asked", "train saved")
    assert found.record["outcome"] == "stopped"


@pytest.mark.skipif(shutil.which("script") is None, reason="script is not installed")
def test_p12_nor_in_a_terminal(tmp_path: Path) -> None:
    found = stop(tmp_path, "script -qec '$T train; $T publish' log; $T publish", "train")
    assert found.notes == ("train begins", "train asked", "train saved")


@pytest.mark.parametrize("shell", installed(*SHELLS))
def test_p12_of_no_shell(tmp_path: Path, shell: str) -> None:
    found = stop(tmp_path, "f() { $T train; $T publish; }; f && f", "train", shell=shell)
    assert found.notes == ("train begins", "train asked", "train saved")
    assert found.record["ranks"][0]["exit_code"] == 0


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_p12_nor_of_make(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("all: a b\na b:\n\t@cd . && $T $@\n\t@$T after-$@\n")
    found = stop(tmp_path, "make -j2 && $T publish", "a", "b")
    assert {*found.notes} == all_of("a", "b")
    assert len(found.notes) == 6


def test_every_program_is_asked_once_and_has_its_grace(tmp_path: Path) -> None:
    script = "$T a & $T b & trap 'kill -TERM %1 %2' TERM; wait; wait"
    found = stop(tmp_path, script, "a", "b")
    assert {*found.notes} == all_of("a", "b")
    assert len(found.notes) == 6
    assert found.record["outcome"] == "stopped"


def test_a_filter_lives_until_the_program_has_saved_and_writes_all(tmp_path: Path) -> None:
    stop(tmp_path, "$T train | cat | tee log; echo after >> log", "train")
    assert (tmp_path / "log").read_text() == "train saved\n"


def test_so_does_one_that_takes_all_output_of_a_shell(tmp_path: Path) -> None:
    stop(tmp_path, "exec > >(cat > log) 2>&1; $T train; echo after", "train")
    assert (tmp_path / "log").read_text() == "train saved\n"


def test_a_shell_that_handles_sigterm_gets_it_after_its_programs(tmp_path: Path) -> None:
    script = "trap 'cat notes; exit 7' TERM; $T train; $T publish"
    found = stop(tmp_path, script, "train")
    assert found.output == ("train saved", "train begins", "train asked", "train saved")
    assert found.record["outcome"] == "stopped"
    assert found.record["cause"] == "rank 0 exited with 7, after a request to stop"


def test_a_bash_runs_its_exit_trap(tmp_path: Path) -> None:
    found = stop(tmp_path, "trap 'echo bye' EXIT; $T train; $T publish", "train")
    assert found.output == ("train saved", "bye")
    assert found.record["cause"] == "stopped without a checkpoint"


def test_what_follows_a_trap_is_asked_in_the_second_half_of_the_grace(tmp_path: Path) -> None:
    script = "trap : TERM; $T train; $T publish"
    found = stop(tmp_path, script, "train", grace_seconds=4.0)
    assert {*found.notes} == all_of("train", "publish")
    assert found.record["outcome"] == "stopped"


def test_a_program_that_was_stopped_by_hand_hears_it(tmp_path: Path) -> None:
    found = stop(tmp_path, "$T train & kill -STOP $!; $T other; $T publish", "other")
    assert {*found.notes} >= all_of("other")
    assert found.record["outcome"] in ("stopped", "killed")
    assert found.record["cause"] != "did not stop within 10 s after the request"


def test_a_program_that_does_not_end_is_killed_after_the_grace(tmp_path: Path) -> None:
    (tmp_path / "saves-slowly").touch()
    found = stop(tmp_path, "$T train; $T publish", "train", grace_seconds=0.3)
    assert found.notes == ("train begins", "train asked")
    assert found.record["cause"] == "did not stop within 0.3 s after the request"


DRIVER = """
import subprocess, sys
for name in ("train", "publish"):
    subprocess.run(["./program", name])
"""


def test_p12_nor_of_a_program_that_waits_for_another(tmp_path: Path) -> None:
    """It does not handle SIGTERM, and would leave its child behind without a word."""
    (tmp_path / "driver.py").write_text(DRIVER)
    found = stop(tmp_path, f"exec {sys.executable} -IS driver.py", "train")
    assert found.notes == ("train begins", "train asked", "train saved")


LAUNCHER = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
for name in ("train", "again"):
    subprocess.run(["./program", name])
"""


def test_what_a_launcher_starts_again_is_asked_too(tmp_path: Path) -> None:
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    found = stop(tmp_path, f"exec {sys.executable} -IS launcher.py", "train", launcher=True)
    begun = {note.split()[0] for note in found.notes if note.endswith("begins")}
    assert {*found.notes} == all_of(*begun)
    assert found.record["outcome"] == "stopped"


def test_a_shell_that_a_rank_has_left_behind_starts_nothing_more(tmp_path: Path) -> None:
    script = "(bash -c '$T train; $T publish' &); exec $T other"
    found = stop(tmp_path, script, "train", "other")
    assert {*found.notes} == all_of("train", "other")


SAVES_BY_A_CHILD = """
import signal, subprocess, sys
def save(*_):
    subprocess.run(["bash", "-c", "echo copied; true"])
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
with open("notes", "a") as notes:
    notes.write("train begins\\n")
signal.pause()
"""


def test_what_a_program_starts_while_it_saves_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES_BY_A_CHILD)
    found = stop(tmp_path, f"{sys.executable} -IS train.py; echo after", "train")
    assert found.output == ("copied",)


@pytest.mark.parametrize(
    "status", ["0", "64", *(pytest.param(each, marks=pytest.mark.full) for each in ("1", "75"))]
)
def test_whatever_its_exit_status_says_it_has_stopped(tmp_path: Path, status: str) -> None:
    found = stop(tmp_path, f"exec $T train {status}", "train")
    assert found.record["outcome"] == "stopped"
    assert found.record["ranks"][0]["exit_code"] == int(status)


@pytest.mark.parametrize(
    ("reports", "script", "outcome"),
    [
        (("finished",), "exec $T train 0", "finished"),
        (("finished",), "exec $T train 1", "finished"),
        (("step", "finished"), "exec sleep 600 & exec $T train", "finished"),
        (("finished", "step"), "exec $T train 0", "stopped"),
    ],
)
def test_a_program_that_reported_that_the_job_is_complete_has_finished(
    tmp_path: Path, reports: tuple[str, ...], script: str, outcome: str
) -> None:
    upload = ("/bin/sh", "-c", "exit 3")  # its result is recorded only where it follows the ranks
    found = stop(tmp_path, script, "train", reports=reports, uploading=upload, reason="preempt")
    assert found.record["outcome"] == outcome
    assert found.record.get("uploading", {}).get("status") == (3 if outcome == "finished" else None)


@pytest.mark.parametrize("seed", range(200 if FULL else 4))
def test_p12_of_random_scripts(tmp_path: Path, seed: int) -> None:
    # ksh handles a signal that its script ignores, and becomes the last command of a subshell.
    shells = [shell for shell in SHELLS if shell != "ksh" and shutil.which(shell.split()[0])]
    shell = shells[seed % len(shells)]
    script, first = a_script(seed)
    found = stop(tmp_path, script, *first, shell=shell)
    assert {*found.notes} == all_of(*first), script
    assert len(found.notes) == 3 * len(first), script
    assert found.record["outcome"] == "stopped", script


def test_p12_nor_of_a_loop_that_reads_what_a_program_writes(tmp_path: Path) -> None:
    """While the program saves, it must be able to write; what it wrote starts nothing after it."""
    script = "yes | while read line; do sh -c 'echo began >> began'; [ -e go ] || $T train; done"
    found = stop(tmp_path, script, "train")
    assert found.notes == ("train begins", "train asked", "train saved")
    assert (tmp_path / "began").read_text() == "began\n"


def test_a_loop_that_stamps_lines_passes_them_on_until_the_end(tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(TALKS)
    script = f"{sys.executable} -IS talks.py | while read l; do echo $(echo at) $l; done; $T after"
    found = stop(tmp_path, script, "train")
    assert found.output[-1].startswith("at 299 ")
    assert len(found.notes) == 1


TALKS = """
import os, signal
def save(*_):
    for number in range(300):  # more than a pipe holds
        os.write(1, b"%d %s\\n" % (number, b"x" * 400))
    os._exit(0)
signal.signal(signal.SIGTERM, save)
with open("notes", "a") as notes:
    notes.write("train begins\\n")
while True:
    signal.pause()
"""
