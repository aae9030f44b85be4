from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerotools.jobs.client.daemon_address import default_socket, default_state_dir


def test_what_is_named_wins(tmp_path: Path) -> None:
    environment = {"ZEROTOOLS_SOCKET": "/s/x.sock", "ZEROTOOLS_STATE_DIR": "/d"}
    assert default_socket(environment) == Path("/s/x.sock")
    assert default_state_dir(environment) == Path("/d")
    del environment["ZEROTOOLS_SOCKET"]
    assert default_socket(environment | {"XDG_RUNTIME_DIR": str(tmp_path)}) == Path("/d/api.sock")


def test_the_runtime_directory_is_used_where_it_is_ours(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "XDG_STATE_HOME": "/x", "HOME": "/h"}
    if os.geteuid() == 0:
        assert default_socket(environment) == Path("/var/lib/zerotools/api.sock")
    else:
        assert default_socket(environment) == tmp_path / "zerotools" / "api.sock"
    tmp_path.chmod(0o777)
    assert default_socket(environment) == default_state_dir(environment) / "api.sock"
    environment["XDG_RUNTIME_DIR"] = str(tmp_path / "missing")
    assert default_socket(environment) == default_state_dir(environment) / "api.sock"


def test_the_usual_state_directory() -> None:
    found = default_state_dir({"XDG_STATE_HOME": "/x"})
    if os.geteuid() == 0:
        assert found == Path("/var/lib/zerotools")
    else:
        assert found == Path("/x/zerotools")


@pytest.mark.parametrize("relative", ["run/x.sock", "./x.sock"])
def test_relative_paths_are_made_absolute(relative: str) -> None:
    assert default_socket({"ZEROTOOLS_SOCKET": relative}) == Path(relative).absolute()
