"""Digests and signatures of files, which the usual programs check."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.release.building import git
from harness.release.signing import find_key, sign, write_sums
from zerotools.core.errors import BadRequest


def test_files_are_signed_and_a_change_is_seen(tmp_path: Path) -> None:
    key = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    file = tmp_path / "a.whl"
    file.write_bytes(b"bytes")
    sums = write_sums([file], tmp_path)
    subprocess.run(["sha256sum", "--check", "--quiet", sums], cwd=tmp_path, check=True)
    assert [path.name for path in sign([file, sums], key)] == ["a.whl.sig", "SHA256SUMS.sig"]
    public = key.with_suffix(".pub").read_text()
    (tmp_path / "allowed").write_text(f"me {public}")
    verify = "ssh-keygen -Y verify -f allowed -I me -n file -s a.whl.sig <a.whl"
    assert subprocess.run(["sh", "-c", verify], cwd=tmp_path, check=False).returncode == 0
    file.write_bytes(b"other")
    assert subprocess.run(["sh", "-c", verify], cwd=tmp_path, check=False).returncode != 0


def test_the_key_is_named_or_gits(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "user.signingkey", "")
    with pytest.raises(BadRequest, match="pass --unsigned"):
        find_key(tmp_path, None)
    with pytest.raises(BadRequest, match="is not a file"):
        find_key(tmp_path, tmp_path / "none")
    (tmp_path / "id").touch()
    git(tmp_path, "config", "user.signingkey", str(tmp_path / "id"))
    git(tmp_path, "config", "gpg.format", "ssh")
    assert find_key(tmp_path, None) == tmp_path / "id"
