from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from zerotools.core.errors import BadFile
from zerotools.runs.manifest import (
    MANIFEST,
    read_manifest,
    stamps_prove_unchanged,
    verify_manifest,
    write_manifest,
)


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / "__0_0.distcp").write_bytes(bytes(range(256)) * 9000)
    (tmp_path / "job.json").write_text("{}")
    (tmp_path / "empty").touch()
    write_manifest(tmp_path)
    return tmp_path


def test_what_was_sealed_verifies(sealed: Path) -> None:
    assert verify_manifest(sealed) == []
    assert set(read_manifest(sealed)) == {"dcp/__0_0.distcp", "empty", "job.json"}


def test_sealing_again_gives_the_same_bytes(sealed: Path) -> None:
    before = (sealed / MANIFEST).read_bytes()
    write_manifest(sealed)
    assert (sealed / MANIFEST).read_bytes() == before
    assert not list(sealed.glob("*.draft"))


def test_a_file_that_is_not_listed_does_not_matter(sealed: Path) -> None:
    (sealed / "notes.txt").write_text("good run")
    assert verify_manifest(sealed) == []


def test_one_flipped_bit_is_found_by_its_digest_only(sealed: Path) -> None:
    path = sealed / "dcp" / "__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[1_000_000] ^= 4
    path.write_bytes(data)
    assert verify_manifest(sealed, digests=False) == []
    (problem,) = verify_manifest(sealed)
    assert problem.file == "dcp/__0_0.distcp"
    assert "have changed since" in problem.message


def test_a_shorter_file_is_named_with_both_sizes(sealed: Path) -> None:
    os.truncate(sealed / "job.json", 1)
    (problem,) = verify_manifest(sealed, digests=False)
    assert "has 1 bytes" in problem.message
    assert "has 2" in problem.message


def test_a_missing_file_and_a_directory_in_its_place(sealed: Path) -> None:
    (sealed / "empty").unlink()
    (sealed / "job.json").unlink()
    (sealed / "job.json").mkdir()
    missing, odd = verify_manifest(sealed)
    assert "missing" in missing.message
    assert "not a regular file" in odd.message


def test_no_manifest_is_a_problem(tmp_path: Path) -> None:
    (problem,) = verify_manifest(tmp_path)
    assert "never finished" in problem.message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"version": 2, "files": {}}',
        '{"version": 1}',
        '{"version": 1, "files": {"a": 3}}',
        '{"version": 1, "files": {"a": {"size": -1, "sha256": ""}}}',
        '{"version": 1, "files": {"../a": {"size": 1, "sha256": ""}}}',
        '{"version": 1, "files": {"/etc/passwd": {"size": 1, "sha256": ""}}}',
    ],
)
def test_a_manifest_of_another_shape_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    assert len(verify_manifest(tmp_path)) == 1
    with pytest.raises(BadFile):
        read_manifest(tmp_path)


def test_a_fifo_is_refused_and_not_waited_for(sealed: Path) -> None:
    os.mkfifo(sealed / "pipe")
    with pytest.raises(BadFile, match="not a regular file"):
        write_manifest(sealed)
    (sealed / "job.json").unlink()
    os.mkfifo(sealed / "job.json")
    assert "not a regular file" in verify_manifest(sealed)[0].message


def test_the_file_is_plain_json(sealed: Path) -> None:
    tree = json.loads((sealed / MANIFEST).read_text())
    assert tree["version"] == 1
    assert tree["files"]["job.json"]["size"] == 2


def test_files_that_nobody_wrote_since_need_not_be_read_again(sealed: Path, tmp_path: Path) -> None:
    assert not stamps_prove_unchanged(sealed)
    write_manifest(sealed, stamps=True)
    assert stamps_prove_unchanged(sealed)
    moved = sealed.rename(tmp_path.with_name(f"{tmp_path.name}-moved"))
    assert stamps_prove_unchanged(moved)
    copy = shutil.copytree(moved, tmp_path / "copy")
    assert not stamps_prove_unchanged(copy)
    assert verify_manifest(copy) == verify_manifest(moved) == []
    job = moved / "job.json"
    before = job.stat()
    job.write_text("[]")
    os.utime(job, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not stamps_prove_unchanged(moved)
    assert [problem.file for problem in verify_manifest(moved)] == ["job.json"]


def test_after_a_reboot_all_is_read(sealed: Path) -> None:
    write_manifest(sealed, stamps=True)
    tree = json.loads((sealed / MANIFEST).read_text())
    (sealed / MANIFEST).write_text(json.dumps({**tree, "boot": "another"}))
    assert not stamps_prove_unchanged(sealed)
    assert verify_manifest(sealed) == []
