"""An `ssh` in PATH that reaches this machine, and what it was called with."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


class SshDouble:
    """`ssh_double.sh` as `ssh`; `home` is that of the user there."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._notes = tmp_path / "ssh"
        self._notes.mkdir()
        program = self._notes / "bin" / "ssh"
        program.parent.mkdir()
        shutil.copy(Path(__file__).with_name("ssh_double.sh"), program)
        self.home = tmp_path / "home"
        self.home.mkdir()
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        monkeypatch.setenv("SSH_DOUBLE", str(self._notes))
        monkeypatch.setenv("HOME", str(self.home))
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
        for name in ("XDG_STATE_HOME", "ZEROTOOLS_SOCKET", "ZEROTOOLS_STATE_DIR"):
            monkeypatch.delenv(name, raising=False)

    def fails(self, text: str) -> None:
        """From now on it ends with 255 and says `text`."""
        (self._notes / "says").write_text(text)

    def hangs(self) -> None:
        """From now on it never comes to an end of forwarding."""
        (self._notes / "hangs").touch()

    @property
    def calls(self) -> list[str]:
        """The arguments of each call; `over` behind one that ran something there to its end."""
        return (self._notes / "calls").read_text().splitlines()
