"""How many source files a command goes through: a reader who follows it opens each of them.

A file is entered when one of its functions is called, apart from calls that importing a module
makes. The ceilings only go down.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED

ROOT = Path(__file__).resolve().parents[2]
CEILINGS = {
    # aim: 80
    "consolidate": 112,
    # aim: 85
    "reshard": 106,
}
ARGUMENTS = {
    "consolidate": [DEEPSPEED / "z3-bf16-w2/checkpoint"],
    "reshard": ["--world-size", "2", DEEPSPEED / "z2-bf16-w3/checkpoint"],
}
TRACE = """
import atexit, json, os, runpy, sys, threading

root = os.environ["ENTERED_ROOT"]
ours = (f"{root}/zerotools/", f"{root}/daemon/zerotoolsd/")
entered = set()

def profile(frame, event, _):
    file = frame.f_code.co_filename
    if event != "call" or file in entered or not file.startswith(ours):
        return
    above = frame
    while above is not None:
        if above.f_code.co_filename.startswith("<frozen importlib"):
            return
        above = above.f_back
    if frame.f_code.co_name != "<module>":
        entered.add(file)

def write():
    with open(os.environ["ENTERED_OUT"], "w") as out:
        json.dump(sorted(os.path.relpath(file, root) for file in entered), out)

atexit.register(write)
threading.setprofile(profile)
sys.setprofile(profile)
sys.argv = ["zerotools", *sys.argv[1:]]
runpy.run_module("zerotools", run_name="__main__")
"""


@pytest.mark.parametrize("command", CEILINGS)
def test_a_command_enters_few_files(command: str, tmp_path: Path) -> None:
    entered = tmp_path / "entered.json"
    subprocess.run(
        [sys.executable, "-c", TRACE, command, *map(str, ARGUMENTS[command]), tmp_path / "out"],
        env={**os.environ, "ENTERED_ROOT": str(ROOT), "ENTERED_OUT": str(entered)},
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    files = json.loads(entered.read_text())
    assert len(files) <= CEILINGS[command], f"{len(files)} files are entered:\n" + "\n".join(files)
