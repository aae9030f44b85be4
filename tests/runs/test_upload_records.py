from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.runs.upload_records import (
    UPLOADS,
    checkpoint_in_upload,
    record_run,
    record_upload,
    uploaded_run,
)


def test_what_is_noted_is_known(tmp_path: Path) -> None:
    assert (uploaded_run(tmp_path), checkpoint_in_upload(tmp_path)) == (None, None)
    record_upload(tmp_path, None)
    record_run(tmp_path, "5f0c", "job 1")
    record_upload(tmp_path, tmp_path / "step-00000004")
    assert (uploaded_run(tmp_path), checkpoint_in_upload(tmp_path)) == (
        "5f0c",
        tmp_path / "step-00000004",
    )
    record_upload(tmp_path, None)
    assert checkpoint_in_upload(tmp_path) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff\x00", b'{"run": 7}', b"x" * 8192])
def test_notes_that_are_damaged_are_none(data: bytes, tmp_path: Path) -> None:
    (tmp_path / UPLOADS).mkdir()
    for name in ("run.json", "sending"):
        (tmp_path / UPLOADS / name).write_bytes(data)
    assert uploaded_run(tmp_path) is None
    assert checkpoint_in_upload(tmp_path) is None


@pytest.mark.parametrize("data", [b"../step-00000004", b"/etc", b"step-00000004\0x", b"latest"])
def test_what_is_sent_is_a_checkpoint_of_the_directory(data: bytes, tmp_path: Path) -> None:
    (tmp_path / UPLOADS).mkdir()
    (tmp_path / UPLOADS / "sending").write_bytes(data)
    assert checkpoint_in_upload(tmp_path) is None
