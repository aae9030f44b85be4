from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

from zerotools.cli.lazy_command_group import LazyGroup
from zerotools.cli.main import build

LOAD = """
import os, sys, click
from zerotools.cli.main import build
group = build()
group.get_command(click.Context(group), "verify")
threads = len(os.listdir("/proc/self/task"))
print("numpy" in sys.modules, threads, "OPENBLAS_NUM_THREADS" in os.environ)
"""


def test_numpy_is_imported_without_threads_that_spin() -> None:
    """Programs that the command starts do not inherit the setting."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
    plain = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", LOAD], env=plain, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["True", "1", "False"]


@pytest.mark.parametrize("name", ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"])
def test_a_number_of_threads_that_the_user_set_stays(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "3")
    group = build()
    assert isinstance(group, LazyGroup)
    before = dict(os.environ)
    assert group.get_command(click.Context(group), "verify") is not None
    assert dict(os.environ) == before
