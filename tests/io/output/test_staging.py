from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.output.staging import Staging, in_two_steps


def contents(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def anything(_: Path) -> None:
    return None


def write(destination: Path, text: str, *, overwrite: bool = False) -> None:
    with Staging(destination, check_replaced=anything if overwrite else None) as staging:
        (staging.directory / "file").write_text(text)
        staging.commit()


def test_nothing_has_the_name_before_the_commit(tmp_path: Path) -> None:
    with Staging(tmp_path / "out") as staging:
        (staging.directory / "file").write_text("x")
        assert contents(tmp_path) == ["out.partial"]
        staging.commit()
    assert contents(tmp_path) == ["out"]
    assert (tmp_path / "out/file").read_text() == "x"


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail_halfway() -> None:
        with Staging(tmp_path / "out") as staging:
            (staging.directory / "file").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    assert contents(tmp_path) == []


def test_what_a_killed_run_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / "out.partial/deep").mkdir(parents=True)
    (tmp_path / "out.partial/deep/stale").write_text("old")
    write(tmp_path / "out", "new")
    assert contents(tmp_path) == ["out"]
    assert contents(tmp_path / "out") == ["file"]


def test_an_existing_output_is_refused_and_kept(tmp_path: Path) -> None:
    write(tmp_path / "out", "first")
    with pytest.raises(BadRequest, match="exists; choose another output, or pass --overwrite"):
        write(tmp_path / "out", "second")
    assert (tmp_path / "out/file").read_text() == "first"


def test_overwrite_replaces_the_whole(tmp_path: Path) -> None:
    write(tmp_path / "out", "first")
    (tmp_path / "out/other").write_text("gone afterwards")
    write(tmp_path / "out", "second", overwrite=True)
    assert contents(tmp_path) == ["out"]
    assert contents(tmp_path / "out") == ["file"]
    assert (tmp_path / "out/file").read_text() == "second"


def test_two_runs_never_share_an_output(tmp_path: Path) -> None:
    with Staging(tmp_path / "out") as first:
        with pytest.raises(BadRequest, match="another run is writing"):
            write(tmp_path / "out", "second")
        first.commit()
    assert contents(tmp_path) == ["out"]


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadRequest, match="cannot be written"):
        write(tmp_path / "file/out", "x")


def leave(destination: Path, error: BaseException, *, keep: bool, take_over: bool) -> None:
    def fail_halfway() -> None:
        with Staging(destination, keep=keep) as staging:
            (staging.directory / "file").write_text("x")
            if take_over:
                staging.adopt_files()
            raise error

    with pytest.raises(type(error)):
        fail_halfway()


def test_an_interrupt_leaves_what_a_failure_removes(tmp_path: Path) -> None:
    leave(tmp_path / "out", KeyboardInterrupt(), keep=False, take_over=True)
    assert contents(tmp_path / "out.partial") == ["file"]
    leave(tmp_path / "out", ZeroDivisionError(), keep=True, take_over=False)
    assert contents(tmp_path / "out.partial") == ["file"]
    leave(tmp_path / "out", ZeroDivisionError(), keep=True, take_over=True)
    assert contents(tmp_path) == []


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", "x")
    assert contents(tmp_path) == ["out"]
    assert contents(tmp_path / "out") == ["file"]


def test_what_a_file_system_cannot_replace_is_found_before_the_work(tmp_path: Path) -> None:
    def overlay(_: Path, __: Path) -> None:  # a directory of a lower layer, as overlayfs has it
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    write(tmp_path / "out", "old")
    staging = Staging(tmp_path / "out", check_replaced=anything, rename=overlay)
    with pytest.raises(BadRequest, match=r"lower layer of an overlay .* choose another output"):
        staging.__enter__()
    assert contents(tmp_path) == ["out"]
    assert (tmp_path / "out/file").read_text() == "old"


def test_what_appears_in_an_output_while_the_next_is_made_is_kept(tmp_path: Path) -> None:
    def refuse_notes(path: Path) -> None:
        if (path / "notes").exists():
            raise BadRequest("holds notes")

    write(tmp_path / "out", "old")

    def replace() -> None:
        with Staging(tmp_path / "out", check_replaced=refuse_notes) as staging:
            (staging.directory / "file").write_text("new")
            (tmp_path / "out/notes").touch()
            staging.commit()

    with pytest.raises(BadRequest, match="holds notes"):
        replace()
    assert contents(tmp_path) == ["out"]
    assert contents(tmp_path / "out") == ["file", "notes"]


def test_an_exchange_is_undone_whatever_the_check_of_the_old_output_raises(tmp_path: Path) -> None:
    def check(path: Path) -> None:
        if path.name == "out.partial":
            raise BadFile("changed")

    write(tmp_path / "out", "old")

    def replace() -> None:
        with Staging(tmp_path / "out", check_replaced=check) as staging:
            (staging.directory / "file").write_text("new")
            staging.commit()

    with pytest.raises(BadFile, match="changed"):
        replace()
    assert contents(tmp_path) == ["out"]
    assert (tmp_path / "out/file").read_text() == "old"


def test_a_leftover_of_an_exchange_in_two_steps_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "out.replaced").mkdir()
    (tmp_path / "out.replaced" / "file").write_text("of a killed run")
    write(tmp_path / "out", "old")
    with Staging(tmp_path / "out", check_replaced=anything, exchange=in_two_steps) as staging:
        (staging.directory / "file").write_text("new")
        staging.commit()
    assert contents(tmp_path) == ["out", "out.replaced"]
    assert (tmp_path / "out/file").read_text() == "new"


def test_a_link_where_the_output_is_made_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letters").write_text("kept")
    (tmp_path / "out.partial").symlink_to("home")
    with pytest.raises(BadRequest, match=r"out\.partial is a symbolic link"):
        write(tmp_path / "out", "new")
    assert (tmp_path / "home/letters").read_text() == "kept"


def test_what_takes_the_place_of_an_unfinished_output_is_not_given_its_name(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("theirs")

    def exchanged() -> None:
        with Staging(tmp_path / "out") as staging:
            staging.directory.rename(tmp_path / "aside")
            other.rename(staging.directory)
            staging.commit()

    with pytest.raises(BadRequest, match="replaced after it was written"):
        exchanged()
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.partial/file").read_text() == "theirs"
