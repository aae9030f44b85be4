from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotools.io.output import part_ledger
from zerotools.io.output.journal import NAME, Journal
from zerotools.io.output.part_ledger import PartLedger, check_parts, count_parts, remove_journals
from zerotools.io.output.staging import PROBE

IDENTITY = {"source files": "1", "options": "2"}


@contextmanager
def ledger(directory: Path, parts: int = 3) -> Iterator[PartLedger]:
    with closing(PartLedger(directory, IDENTITY, parts)) as found:
        yield found


def test_runs_know_what_each_has_completed(tmp_path: Path) -> None:
    with ledger(tmp_path) as first, ledger(tmp_path) as second:
        with closing(first.journal(1)) as journal:
            journal.add("a", [1])
            assert second.done_of(1) == {"a": [1]}
        assert second.done_of(2) == {}
        assert count_parts(tmp_path) == 3
    (tmp_path / "a").touch()
    remove_journals(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_one_run_writes_a_part_at_a_time(tmp_path: Path) -> None:
    with ledger(tmp_path) as first, ledger(tmp_path) as second, closing(first.journal(2)):
        with pytest.raises(BadRequest, match="another run is writing part 2 of 3"):
            second.journal(2)
        second.journal(1).close()


def test_what_a_kill_cut_short_is_begun_anew(tmp_path: Path) -> None:
    with ledger(tmp_path):
        pass
    whole = (tmp_path / NAME).read_bytes()
    for length in range(len(whole)):
        (tmp_path / NAME).write_bytes(whole[:length])
        with ledger(tmp_path):
            assert (tmp_path / NAME).read_bytes() == whole


def test_the_probe_of_a_killed_run_is_no_run_without_parts(tmp_path: Path) -> None:
    (tmp_path / NAME).touch()
    (tmp_path / PROBE).touch()
    check_parts(tmp_path, 3)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(BadRequest, match="holds files of a run without --part"):
        check_parts(tmp_path, 3)


def test_other_parts_and_runs_without_parts_are_told_apart(tmp_path: Path) -> None:
    with ledger(tmp_path), pytest.raises(BadRequest, match="in 3 parts, but this run is one of 4"):
        PartLedger(tmp_path, IDENTITY, 4)
    with pytest.raises(BadRequest, match=r"other options; remove .* to start over"):
        PartLedger(tmp_path, {**IDENTITY, "options": "3"}, 3)
    alone = tmp_path / "alone"
    alone.mkdir()
    journal = Journal(alone, IDENTITY, resume=False)
    journal.add("a", ["x" * 2**17])  # longer than any ledger
    journal.close()
    assert count_parts(alone) is None
    with pytest.raises(BadRequest, match="of a run without --part; finish that run with --resume"):
        PartLedger(alone, IDENTITY, 3)


def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(file: int, how: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(part_ledger.fcntl, "flock", none)
    with pytest.raises(BadRequest, match=r"cannot be locked: .*-o flock"):
        PartLedger(tmp_path, IDENTITY, 3)
    assert fcntl.flock is none
