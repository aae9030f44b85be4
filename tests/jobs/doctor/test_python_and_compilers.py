"""What is said of the Python of jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from zerotools.jobs.doctor.python_and_compilers import ask_python, check_compilers, check_python

WHOLE = {"torch": "2.9", "cuda": "12.8", "nccl": "2.27", "transformers": "5", "gpus": 8}


@pytest.mark.parametrize(
    ("changes", "levels"),
    [
        ({}, {"torch": "ok", "NCCL": "ok"}),
        ({"torch": None, "why": "ImportError: x"}, {"torch": "warning"}),
        ({"torch": "2.7.1+cu128"}, {"torch": "problem"}),
        ({"transformers": None}, {"torch": "ok", "transformers": "warning", "NCCL": "ok"}),
        ({"cuda": None}, {"torch": "problem"}),
        ({"gpus": 0}, {"torch": "problem"}),
        ({"nccl": None}, {"torch": "ok", "NCCL": "warning"}),
    ],
)
def test_what_an_interpreter_has(changes: dict[str, Any], levels: dict[str, str]) -> None:
    found = check_python("python", {**WHOLE, **changes}, has_gpus=True)
    assert {each.what: each.level for each in found} == levels


def test_on_a_machine_without_gpus_a_build_for_cpus_is_well() -> None:
    found = check_python("python", {**WHOLE, "cuda": None, "gpus": 0}, has_gpus=False)
    assert [each.level for each in found] == ["ok"]


def test_an_interpreter_that_cannot_say(tmp_path: Path) -> None:
    missing = str(tmp_path / "python")
    answer = ask_python(missing)
    assert answer == "cannot be started: No such file or directory"
    [found] = check_python(missing, answer, has_gpus=False)
    assert (found.level, found.found) == ("problem", f"{missing} {answer}")
    assert found.do == "check the path of the python"
    assert ask_python("/bin/false") == "ended with status 1 when it listed its packages"
    assert ask_python(sys.executable, 0.0) == "did not answer within 0 s"


@pytest.mark.parametrize(
    ("programs", "level", "said"),
    [
        ({"g++", "ninja", "nvcc"}, "ok", "are there"),
        ({"ninja"}, "warning", "no C++ compiler"),
        ({"c++"}, "warning", "no ninja"),
        ({"c++", "ninja"}, "warning", "the CUDA toolkit is missing"),
    ],
)
def test_compilers(programs: set[str], level: str, said: str) -> None:
    lacking = None if "nvcc" in programs else "the CUDA toolkit is missing"
    [found] = check_compilers(
        lambda name: name if name in programs else None, lambda: lacking, has_gpus=True
    )
    assert (found.level, said in found.found) == (level, True)
