"""What `zerotoolsd` does without being a daemon, and without the packages that a daemon needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from zerotools.version import version
from zerotoolsd.app.command_line import make_parser

WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "aiohttp":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from zerotoolsd.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def without_aiohttp(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_daemon_without_aiohttp_says_what_to_install() -> None:
    done = without_aiohttp("--state-dir", "/nonexistent/state")
    assert done.returncode == 2
    assert "zerotoolsd needs aiohttp, which is not installed" in done.stderr
    assert "install 'aiohttp>=3.9'" in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_units_and_the_version_need_no_aiohttp() -> None:
    assert without_aiohttp("--version").stdout == f"zerotoolsd {version()}\n"
    assert "[Service]\n" in without_aiohttp("--print-unit", "user").stdout


def test_a_unit_is_printed_and_nothing_started(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(["--print-unit", "tmpfiles"])
    assert ended.value.code == 0
    assert "d /run/zerotools/gpus 1777" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(["--print-unit", "launchd"])
    assert ended.value.code == 2


@pytest.mark.parametrize("asked", [["--print-unit", "system"], ["--version"], ["--help"]])
def test_output_that_cannot_be_written_is_one_message(asked: list[str]) -> None:
    command = [sys.executable, "-m", "zerotoolsd", *asked]
    # argparse itself drops what an unbuffered stream refuses
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}

    def ended(stdout: IO[str] | int) -> tuple[int, str]:
        done = subprocess.run(
            command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, env=buffered
        )
        return done.returncode, done.stderr

    with Path("/dev/full").open("w") as full:
        assert ended(full) == (71, "error: standard output: No space left on device\n")
    reading, writing = os.pipe()
    os.close(reading)
    assert ended(writing) == (141, "")
    os.close(writing)
