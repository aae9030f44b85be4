"""What passes on the output of a script reads to the end, though the script has ended before."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.started import Started
from tests.daemon.made_attempts import finish, make_attempt, supervise
from tests.daemon.waiting import wait_for
from zerotoolsd.supervisor.procfs import Process, children_of, read_process
from zerotoolsd.supervisor.stop.keep_pipes_open import pipes_read
from zerotoolsd.supervisor.stop.leftover_processes import passing_on

SLOW = """
import sys, time
for line in sys.stdin:
    time.sleep(0.02)
    print("slow", line, end="", flush=True)
"""


def run(tmp_path: Path, script: str) -> tuple[dict[str, Any], list[str]]:
    """The record of the attempt that runs `script` in a bash, and its output."""
    (tmp_path / "slow").write_text(f"#!{sys.executable} -IS\n{SLOW}")
    (tmp_path / "slow").chmod(0o755)
    env = {"PATH": os.environ["PATH"]}
    place: dict[str, Any] = {"cwd": str(tmp_path), "world_size": 1, "own_program": True}
    made = make_attempt(tmp_path / "run", "", argv=("bash", "-c", script), env=env, **place)
    record = finish(made, supervise(made))
    return record, (made / "rank-0.log").read_text().splitlines()


@pytest.mark.parametrize(
    ("script", "last"),
    [
        ("exec > >(./slow) 2>&1; seq 30; echo its end; exit 3", "slow its end"),
        (
            "exec > >(while read -r line; do echo $(echo at) $line; done) 2>&1; seq 30; exit 3",
            "at 30",
        ),
        ("exec > >(./slow | ./slow) 2>&1; seq 10; exit 3", "slow slow 10"),
    ],
)
def test_readers_of_all_output_of_a_script_read_to_its_end(
    tmp_path: Path, script: str, last: str
) -> None:
    record, output = run(tmp_path, script)
    assert output[-1] == last
    assert (record["outcome"], record["exit_code"]) == ("crashed", 3)
    assert record["last_lines"].splitlines()[-1] == last
    assert record["cut_short"] is None


def test_a_filter_reads_to_the_end_though_a_program_in_the_background_could_write(
    tmp_path: Path,
) -> None:
    slow = "import os, sys, time; time.sleep(0.3); os.write(1, os.read(0, 9)); time.sleep(600)"
    (tmp_path / "tee").write_text(f"#!{sys.executable} -IS\n{slow}\n")
    (tmp_path / "tee").chmod(0o755)
    record, output = run(tmp_path, "exec > >(./tee); sleep 600 & echo its end")
    assert output == ["its end"]
    assert record["cut_short"].endswith(
        "(sleep) still ran when the program of the job ended, and was killed"
    )


def test_a_program_that_was_left_in_the_background_is_named(tmp_path: Path) -> None:
    record, _ = run(tmp_path, "nohup sleep 600 & nohup sleep 601 & exit 0")
    assert record["outcome"] == "finished"
    assert record["cut_short"].count("(sleep)") == 2
    assert record["cut_short"].endswith(" and were killed")


def test_who_reads_from_a_program_that_runs_is_not_waited_for() -> None:
    """It would begin the next command when that program ends."""
    shell = Started(("bash", "-c", "x=$(sleep 600); echo next"))

    def left() -> list[Process]:
        own = read_process(shell.pid)
        return [*(() if own is None else (own,)), *children_of(shell.pid)]

    wait_for(lambda: [each.name for each in left()] == ["bash", "sleep"], "its program")
    wait_for(lambda: pipes_read(shell.pid), "bash to read what it prints")
    assert passing_on(left()) == []
    shell.end()
