"""How a program is started as a user."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.daemon.users.other_users import UID, user_of
from zerotools.jobs.text.exec_limits import LONGEST_STRING, too_long
from zerotoolsd.users import run_as_user
from zerotoolsd.users.start_as_submitter import given_env


def test_the_command_says_who_and_what() -> None:
    command = user_of(open_files=7).command(("/bin/true", "x"), output=Path("/log"))
    assert command[:4] == (sys.executable, "-I", "-S", run_as_user.__file__)
    who = json.loads(command[4])
    assert (who["uid"], who["groups"], who["open_files"]) == (UID, [UID], 7)
    assert (who["output"], who["given"], who["umask"]) == ("/log", False, 0o077)
    assert command[5:] == ("/bin/true", "x")


def test_roots_variables_are_not_for_others() -> None:
    own = user_of().environment({"HOME": "/root", "PATH": "/root/bin", "TZ": "UTC", "TOKEN": "x"})
    assert own["HOME"] == "/"
    assert "/root" not in own["PATH"]
    assert own["TZ"] == "UTC"
    assert "TOKEN" not in own


def test_what_a_user_chose_means_nothing_before_the_drop() -> None:
    given = given_env({"LD_PRELOAD": "/mine.so", "PYTHONPATH": "/mine"})
    assert not {"LD_PRELOAD", "PYTHONPATH"} & set(given)
    assert run_as_user.environment_of({"given": True}, {**given, "HOME": "/root"}) == {
        "LD_PRELOAD": "/mine.so",
        "PYTHONPATH": "/mine",
    }


def test_a_variable_as_long_as_the_kernel_takes_reaches_a_program_of_another_user() -> None:
    longest = "é" * ((LONGEST_STRING - len("A=")) // 2)
    given = given_env({"A": longest, "B": "short", "rest": "mine"})
    assert all(too_long(text, name) is None for name, text in given.items())
    found = run_as_user.environment_of({"given": True}, given)
    assert found == {"A": longest, "B": "short", "rest": "mine"}
