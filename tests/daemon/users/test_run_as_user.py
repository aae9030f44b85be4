"""Becoming a user for good, before anything of theirs is opened."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.started import run
from tests.daemon.users.other_users import AS_ROOT, UID, open_directory, user_of
from zerotoolsd.supervisor import transient_os_errors
from zerotoolsd.users import run_as_user
from zerotoolsd.users.start_as_submitter import given_env

SHOW = "cat /proc/self/status /proc/self/limits; umask; env; kill -PIPE $$; echo deaf"


def started(command: tuple[str, ...], env: dict[str, str]) -> subprocess.CompletedProcess[Any]:
    return run(command, timeout=20, capture_output=True, text=True, env=env, cwd="/")


@AS_ROOT
def test_nothing_of_the_daemon_is_left() -> None:
    user = user_of(open_files=100, processes=5000)
    command = user.command(("/bin/sh", "-c", SHOW), umask=0o027, given=True)
    env = {**given_env({"PATH": "/usr/bin:/bin", "LD_BIND_NOW": "1"}), "SECRET": "of the daemon"}
    done = started(command, env)
    said = done.stdout.splitlines()
    status = dict(line.split(":\t", 1) for line in said if ":\t" in line)
    assert status["Uid"].split() == [str(UID)] * 4
    assert status["Gid"].split() == [str(UID)] * 4
    assert status["Groups"].split() == [str(UID)]
    assert status["NoNewPrivs"] == "1"
    assert [int(status[f"Cap{name}"], 16) for name in ("Prm", "Eff", "Amb")] == [0, 0, 0]
    limits = {line[:26].strip(): line[26:].split()[:2] for line in said}
    assert limits["Max open files"] == ["100", "100"]
    assert limits["Max processes"] == ["5000", "5000"]
    assert {"0027", "PATH=/usr/bin:/bin", "LD_BIND_NOW=1"} <= set(said)
    assert "SECRET" not in done.stdout
    assert run_as_user.PREFIX not in done.stdout
    assert "deaf" not in said  # signals are as a program expects them


@AS_ROOT
def test_what_the_user_may_not_open_is_not_opened() -> None:
    with open_directory() as place:
        secret = place / "secret"
        secret.write_text("root's\n")
        secret.chmod(0o600)
        (place / "log").symlink_to(secret)
        done = started(user_of().command(("/bin/cat", str(secret))), {})
        assert (done.returncode, done.stdout) == (1, "")
        for output in (place / "log", place / "new"):
            done = started(user_of().command(("/bin/true",), output=output), {})
            assert done.returncode == run_as_user.NOT_DROPPED
            assert f"uid {UID} cannot start {output}: " in done.stderr
        assert secret.read_text() == "root's\n"


@pytest.mark.parametrize(
    ("who", "sentence"),
    [
        (
            {"uid": 0, "gid": 0, "groups": []},
            "uid 0, gid 0: jobs of other users are run only as a uid above 0",
        ),
        ({"uid": -1, "gid": 5, "groups": []}, "uid -1, gid 5: jobs of other users"),
    ],
)
def test_root_is_no_such_user(who: dict[str, Any], sentence: str) -> None:
    command = (sys.executable, "-I", "-S", str(run_as_user.__file__), json.dumps(who), "/bin/true")
    done = started(command, {})
    assert done.returncode == run_as_user.NOT_DROPPED
    assert sentence in done.stderr


@AS_ROOT
def test_who_cannot_become_the_user_starts_nothing() -> None:
    inner = user_of(UID + 7).command(("/bin/echo", "started"))
    # What is read comes first: the interpreter may lie where the user cannot reach it.
    code = (
        "import __future__, collections.abc, ctypes, errno, json, os, resource, signal, sys\n"
        "import typing\n"
        "sys.argv = sys.argv[1:]\n"
        "program = compile(open(sys.argv[0]).read(), sys.argv[0], 'exec')\n"
        f"os.setgroups([]); os.setresgid({UID}, {UID}, {UID}); os.setresuid({UID}, {UID}, {UID})\n"
        "exec(program)"
    )
    done = started((sys.executable, "-I", "-S", "-c", code, *inner[3:]), {})
    assert done.returncode == run_as_user.NOT_DROPPED, done.stderr
    assert f"cannot become uid {UID + 7}" in done.stderr
    assert "started" not in done.stdout


def test_trouble_of_the_machine_is_no_end_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk or quota where its log is to be, or no memory for another process of a user."""
    assert run_as_user._LATER == transient_os_errors._OF_MACHINE
    for code, status in (
        (errno.EDQUOT, run_as_user.NOT_NOW),
        (errno.EACCES, run_as_user.NOT_DROPPED),
    ):
        assert run_as_user._status_of(OSError(code, "why")) == status

    def refuse(*ids: int) -> None:
        raise OSError(errno.EAGAIN, "why")

    monkeypatch.setattr(os, "setgroups", refuse)
    with pytest.raises(OSError, match="why"):
        run_as_user.become_user(UID, UID, (UID,))


def test_a_process_with_a_way_back_is_refused() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has one")
    code = (
        "import os, runpy, sys\n"
        "module = runpy.run_path(sys.argv[1])\n"
        f"os.setgroups([]); os.setresgid({UID}, {UID}, {UID}); os.setresuid({UID}, {UID}, 0)\n"
        f"try: module['check_dropped_rights']({UID}, {UID}, [{UID}])\n"
        "except module['NotDropped'] as error: print(error)\n"
    )
    done = started((sys.executable, "-I", "-S", "-c", code, str(run_as_user.__file__)), {})
    assert f"not as uid {UID}" in done.stdout, done.stderr


def test_the_program_is_the_standard_library() -> None:
    code = f"import runpy, sys; runpy.run_path({str(run_as_user.__file__)!r}); print(*sys.modules)"
    done = started((sys.executable, "-I", "-S", "-c", code), {})
    assert "zerotools" not in done.stdout.split()
    assert Path(run_as_user.__file__).is_file()
