"""An `ssh` in PATH that reaches this machine under any name, and what it was called with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
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

    def fails(self, text: str, host: str | None = None) -> None:
        """From now on it ends with 255 and says `text`, of all hosts or of one."""
        self._of("says", host).write_text(text)

    def hangs(self, host: str | None = None) -> None:
        """From now on it never comes to an end of forwarding; to this `host`, of anything."""
        self._of("hangs", host).touch()

    def breaks(self, host: str, after: int | None) -> None:
        """From now on each connection breaks after so many bytes; None: no more."""
        if after is None:
            self._of("sends", host).unlink()
        else:
            self._of("sends", host).write_text(str(after))

    def stalls(self, host: str, after: int) -> Path:
        """From now on each connection sends no more after so many bytes; a pipe that is told."""
        self.breaks(host, after)
        pipe = self._of("stalls", host)
        os.mkfifo(pipe)
        return pipe

    def first(self, host: str, word: str, script: str) -> None:
        """Before the next connection there that runs something with `word` in it, `script` is run,
        once."""
        self._of("first", host).write_text(f"# {word}\n{script}\n")

    def lives_in(self, host: str, home: Path) -> None:
        """Who logs in there is in `home`."""
        self._of("home", host).symlink_to(home)

    def has_programs(self, host: str, paths: Iterable[Path]) -> None:
        """There are no other programs there."""
        directory = self._of("bin", host)
        directory.mkdir()
        for path in paths:
            (directory / path.name).symlink_to(path)

    def _of(self, what: str, host: str | None) -> Path:
        return self._notes / (what if host is None else f"{what}-{host}")

    @property
    def calls(self) -> list[str]:
        """The arguments of each call; `over` behind one that ran something there to its end."""
        return (self._notes / "calls").read_text().splitlines()
