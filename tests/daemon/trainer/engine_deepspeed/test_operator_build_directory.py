"""Whose turn it is to compile, also after somebody was killed while it was theirs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.started import Started
from zerotoolsd.trainer.engine_deepspeed.operator_build_directory import (
    BUILDS,
    TURN,
    Baton,
    BuildProgress,
    install_batons,
    own_directory,
    use_own_directory,
)

ROOT = Path(__file__).parents[4]
COMPILES = """
import sys, time
from pathlib import Path
from tests.daemon.trainer.engine_deepspeed.test_operator_build_directory import Said
from zerotoolsd.trainer.engine_deepspeed.operator_build_directory import Baton
Baton(Path(sys.argv[1]), uses_kernel_lock=True, teller=Said()).try_acquire()
print("compiling", flush=True)
time.sleep(60)
"""


class Said:
    """What a rank tells of itself."""

    def __init__(self) -> None:
        self.doing: str | None = None
        self.told: list[str] = []
        self.lines: list[str] = []

    def prepares(self, doing: str) -> None:
        self.doing = doing
        self.told.append(doing)

    def log_line(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """Where torch puts its lock of an operator."""
    (tmp_path / "cpu_adam").mkdir()
    return tmp_path / "cpu_adam" / "lock"


@contextmanager
def another_that_compiles(lock: Path) -> Iterator[Started]:
    process = Started(
        [sys.executable, "-c", COMPILES, str(lock)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'daemon'}"},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"compiling\n"
        yield process
    finally:
        process.end()


def test_a_job_compiles_after_one_that_was_killed_while_it_did(lock: Path) -> None:
    with another_that_compiles(lock):
        pass
    assert lock.exists(), "what torch waits for, for ever"
    said = Said()
    said.prepares("loading the weights")
    baton = Baton(
        lock, uses_kernel_lock=True, teller=said, clock=lambda: lock.stat().st_mtime + 7300
    )
    assert baton.try_acquire()
    assert said.lines == [f"removed {lock}, left 2 h ago by an ended process"]
    assert said.doing == "compiling cpu_adam"
    assert lock.exists(), "programs that know only torch's lock wait for us"
    baton.release()
    assert said.doing == "loading the weights"
    assert not lock.exists()


def test_a_job_waits_for_one_that_compiles_and_goes_on_when_that_is_killed(lock: Path) -> None:
    said, pauses = Said(), 0
    with another_that_compiles(lock) as other:

        def pause(_: float) -> None:
            nonlocal pauses
            pauses += 1
            assert lock.exists(), "the lock of a living process is left alone"
            if pauses == 2:
                other.kill()
                other.wait()

        assert Baton(lock, uses_kernel_lock=True, teller=said, pause=pause).try_acquire()
    assert said.told == ["compiling cpu_adam (in another process)", "compiling cpu_adam"]


def test_what_is_compiled_already_is_not_announced(lock: Path) -> None:
    (lock.parent / "cpu_adam.so").touch()
    said = Said()
    baton = Baton(lock, uses_kernel_lock=True, teller=said)
    baton.try_acquire()
    baton.release()
    assert (said.told, said.lines) == ([], [])


def test_the_log_moves_while_an_operator_is_compiled(lock: Path) -> None:
    said = Said()
    made = BuildProgress(lock.parent, said.log_line)
    made.report_new_files()
    (lock.parent / "build.ninja").write_text(
        "rule compile\n  command = c++\nbuild cpu_adam.o: compile /x/cpu_adam.cpp\n"
        "build impl.o: compile /x/impl.cpp\nbuild cpu_adam.so: link impl.o\ndefault cpu_adam.so\n"
    )
    made.report_new_files()
    assert said.lines == []
    (lock.parent / "impl.o").touch()
    made.report_new_files()
    made.report_new_files()
    (lock.parent / "cpu_adam.o").touch()
    made.report_new_files()
    assert said.lines == [
        "compiling cpu_adam: 1 of 3 files made (impl.o)",
        "compiling cpu_adam: 2 of 3 files made (cpu_adam.o)",
    ]


def test_a_lock_in_the_users_own_directory_is_named_and_left_alone(lock: Path) -> None:
    lock.touch()
    os.utime(lock, (time.time() - 3 * 86400,) * 2)
    said, pauses = Said(), 0

    def pause(_: float) -> None:
        nonlocal pauses
        pauses += 1
        assert lock.exists()
        if pauses == 3:
            lock.unlink()  # as its owner does it

    assert Baton(lock, uses_kernel_lock=False, teller=said, pause=pause).try_acquire()
    assert said.told[0] == (
        f"waiting for {lock}, which another program made 3 d ago to compile there; "
        "if that program was killed and none compiles there now, remove the file"
    )
    assert said.lines == [f"waiting for {lock}, which was made 3 d ago"]
    assert not (lock.parent / TURN).exists()


def test_jobs_compile_in_a_directory_of_ours_unless_the_user_names_one(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    assert use_own_directory("2.13.0+cpu", environment)
    own = Path(environment[BUILDS])
    assert own.is_dir()
    assert own == own_directory("2.13.0+cpu", {"XDG_CACHE_HOME": str(tmp_path)})
    assert own != own_directory("2.12.0", {"XDG_CACHE_HOME": str(tmp_path)})
    named = {BUILDS: "/somewhere", "XDG_CACHE_HOME": str(tmp_path)}
    assert not use_own_directory("2.13.0+cpu", named)
    assert named[BUILDS] == "/somewhere"
    (tmp_path / "file").touch()
    unwritable = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    assert not use_own_directory("2.13.0+cpu", unwritable)
    assert BUILDS not in unwritable


@pytest.mark.torch
def test_torch_itself_takes_our_turn(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ninja that fails at once shows that torch came as far as compiling."""
    from torch.utils import cpp_extension

    ninja = lock.parents[1] / "bin" / "ninja"
    ninja.parent.mkdir()
    ninja.write_text("#!/bin/sh\n[ $1 = --version ] && echo 1.11 || { echo no work; exit 1; }\n")
    ninja.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ninja.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(cpp_extension, "FileBaton", cpp_extension.FileBaton)  # put back afterwards
    lock.touch()
    said = Said()
    install_batons([cpp_extension], uses_kernel_lock=True, teller=said)
    (lock.parent / "a.cpp").write_text("int a;\n")
    with pytest.raises(RuntimeError, match="Error building extension"):
        cpp_extension.load(
            "cpu_adam", [str(lock.parent / "a.cpp")], build_directory=str(lock.parent)
        )
    assert said.told[0] == "compiling cpu_adam"
    assert not lock.exists()
