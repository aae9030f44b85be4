"""What a killed backup leaves is removed by the next one, and nothing else is."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from harness.started import Started
from zerotools.jobs.client.unfinished_copies import remove_left_behind, unfinished_copy

ROOT = Path(__file__).resolve().parents[3]
KILLED = """
import os, signal, sys
from pathlib import Path
from zerotools.jobs.client.unfinished_copies import unfinished_copy
with unfinished_copy(Path(sys.argv[1])) as staged:
    staged.write_bytes(b"half")
    staged.with_name(staged.name + "-journal").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_goes_whatever_its_number_is(tmp_path: Path) -> None:
    killed = Started([sys.executable, "-c", KILLED, str(tmp_path / "copy.db")], cwd=ROOT)
    assert killed.wait(60) == -signal.SIGKILL
    (left,) = tmp_path.glob("*.copying")
    assert left.stat().st_mode & 0o077 == 0
    # Its number belongs to a process that lives: the lock says that nobody writes there.
    mine = left.with_name(f".copy.db.{os.getpid()}.copying")
    left.rename(mine)
    left.with_name(f"{left.name}-journal").rename(mine.with_name(f"{mine.name}-journal"))
    with unfinished_copy(tmp_path / "other.db") as staged:
        assert [path.name for path in tmp_path.glob("*.copying")] == [staged.name]
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_to_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    for name in (".note.7.new", "copy.db.7.copying", ".copying", ".copy.db.x.copying"):
        (tmp_path / name).touch()
    (tmp_path / ".link.7.copying").symlink_to(tmp_path / ".note.7.new")
    (tmp_path / ".directory.7.copying").mkdir()
    before = sorted(tmp_path.iterdir())
    with unfinished_copy(tmp_path / "copy.db") as staged:
        assert remove_left_behind(tmp_path) == []
        assert staged.exists()
        with pytest.raises(FileExistsError), unfinished_copy(tmp_path / "copy.db"):
            pass
        assert staged.exists()
    assert sorted(tmp_path.iterdir()) == before


def test_what_became_the_file_stays(tmp_path: Path) -> None:
    with unfinished_copy(tmp_path / "copy.db") as staged:
        staged.write_bytes(b"whole")
        staged.rename(tmp_path / "copy.db")
    assert [path.name for path in tmp_path.iterdir()] == ["copy.db"]
