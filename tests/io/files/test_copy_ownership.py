"""A new file has the owner and the permissions of the one that it replaces, or keeps its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerotools.io.files.copy_ownership import copy_access


def status(mode: int, uid: int) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 1, uid, os.getegid(), 0, 0, 0, 0))


def test_permissions_of_the_same_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    copy_access(status(0o40750, os.geteuid()), tmp_path)
    assert tmp_path.stat().st_mode == 0o40750


def test_a_file_that_cannot_be_given_to_the_other_user_keeps_its_permissions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chown", refused)
    tmp_path.chmod(0o755)
    copy_access(status(0o40000, os.geteuid() + 1), tmp_path)
    assert tmp_path.stat().st_mode == 0o40755
