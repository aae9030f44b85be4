"""Forked programs end as started ones do, also where torch is left to the kernel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness import forked

ENDS = """
import atexit, sys, threading
atexit.register(print, "at the end")
threading.Thread(target=lambda: print("thread")).start()
sys.exit({})
"""


def run(
    directory: Path, modules: Sequence[str], program: str, **env: str
) -> tuple[int, list[str], list[str]]:
    """The status, and the lines of output and errors; `env` is added to that of this process."""
    script = directory / "program.py"
    script.write_text(program)
    with (directory / "out").open("w+b") as out, (directory / "err").open("w+b") as err:
        there = {**os.environ, **env}
        process = forked.start(
            modules, ["-P", str(script)], cwd=directory, env=there, out=out, err=err
        )
        status = process.wait(60)
        lines = []
        for stream in (out, err):
            stream.seek(0)
            lines.append(stream.read().decode().splitlines())
    return status, lines[0], lines[1]


def test_output_and_errors_are_apart(tmp_path: Path) -> None:
    assert run(tmp_path, (), ENDS.format("'why'")) == (1, ["thread", "at the end"], ["why"])


def test_random_numbers_of_one_run_are_not_those_of_the_next(tmp_path: Path) -> None:
    program = "import random, numpy; print(random.random(), numpy.random.random())"
    runs = [run(tmp_path, ("numpy", "numpy.random"), program)[1][0].split() for _ in range(2)]
    assert all(one != other for one, other in zip(*runs, strict=True))


def test_a_script_finds_what_its_python_path_says(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "only_there.py").write_text("print('found')")
    found = run(tmp_path, (), "import only_there", PYTHONPATH=str(tmp_path / "far"))
    assert found == (0, ["found"], [])


@pytest.mark.torch
@pytest.mark.parametrize(
    ("end", "status", "said"), [("None", 0, []), ("7", 7, []), ("'why'", 1, ["why"])]
)
def test_with_torch_threads_and_exit_functions_come_to_their_end(
    tmp_path: Path, end: str, status: int, said: list[str]
) -> None:
    found = run(tmp_path, forked.TORCH, ENDS.format(end))
    assert found == (status, ["thread", "at the end"], said)


@pytest.mark.torch
def test_with_torch_an_error_is_told(tmp_path: Path) -> None:
    status, _, said = run(tmp_path, forked.TORCH, "import torch\n1 / 0")
    assert (status, said[-1]) == (1, "ZeroDivisionError: division by zero")


@pytest.mark.deepspeed
def test_a_server_that_is_forked_from_another_has_what_both_import(tmp_path: Path) -> None:
    program = "import sys; print(*({'deepspeed', 'torch'} & set(sys.modules)))"
    status, out, _ = run(tmp_path, forked.DEEPSPEED, program)
    assert (status, sorted(out[0].split())) == (0, ["deepspeed", "torch"])
