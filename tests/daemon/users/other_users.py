"""Users for tests of root: by number alone, or made for the time of one test module."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.started import run
from zerotoolsd.users.account import Account
from zerotoolsd.users.served_users import why_alone
from zerotoolsd.users.start_as_submitter import JobUser

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
UID, OTHER_UID = 604_242, 604_243
"""Of nobody: what the kernel does, it does for numbers."""


def user_of(uid: int = UID, **limits: int) -> JobUser:
    """A user who is in no list of the machine."""
    account = Account(uid=uid, gid=uid, groups=(uid,), name=f"test-{uid}", home="/")
    return JobUser(account=account, **limits)


@contextmanager
def open_directory() -> Iterator[Path]:
    """A directory that every user reaches; those of pytest are of one user alone."""
    place = Path(tempfile.mkdtemp(prefix="zerotools-users-", dir="/var/tmp"))
    place.chmod(0o711)
    try:
        yield place
    finally:
        shutil.rmtree(place)


@contextmanager
def made_users(count: int) -> Iterator[list[Account]]:
    """So many new users of the machine, without homes, removed in the end."""
    if os.geteuid() != 0 or not (shutil.which("useradd") and shutil.which("userdel")):
        pytest.skip("only root with useradd makes users")
    names = [f"zt-{secrets.token_hex(4)}" for _ in range(count)]
    made: list[str] = []
    try:
        for name in names:
            done = run(("useradd", "-M", "-N", name), timeout=30, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"useradd: {done.stderr}")
            made.append(name)
        yield [_account(name) for name in names]
    finally:
        for name in made:
            run(("userdel", "-f", name), timeout=30, capture_output=True)


def _account(name: str) -> Account:
    found = pwd.getpwnam(name)
    groups = tuple(os.getgrouplist(name, found.pw_gid))
    return Account(uid=found.pw_uid, gid=found.pw_gid, groups=groups, name=name, home="/")


def open_interpreter(place: Path) -> Path:
    """An interpreter below `place` that every user may execute, with what this one has. Tests are
    often run by one in a home that is closed."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    usual = (f"/usr/bin/python{version}", f"/usr/local/bin/python{version}")
    for program in (sys.executable, *filter(os.path.exists, usual)):
        if why_alone(places=(Path(program), *_SOURCES)) is None:
            break
    else:
        pytest.skip("no interpreter that other users may execute, or a source tree that is closed")
    made = run(
        (program, "-m", "venv", "--without-pip", str(place / "python")),
        timeout=60,
        capture_output=True,
        text=True,
    )
    if made.returncode:
        pytest.skip(f"python -m venv: {made.stdout}{made.stderr}")
    (site,) = (place / "python").glob("lib/python*/site-packages")
    paths = [path for path in (*map(str, _SOURCES), *sys.path) if path and "python3" in path]
    (site / "tests.pth").write_text("\n".join([*map(str, _SOURCES), *paths]))
    return place / "python" / "bin" / "python"


_SOURCES = (Path(__file__).parents[3], Path(__file__).parents[3] / "daemon")
