"""A manifest of the run's directory is one of its tag, and the other way round."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED
from tests.ops.verification.damage import SMALL, copy
from zerotools.ops.verification.findings import Verification
from zerotools.ops.verification.manifests.digest_manifest import sidecar_of, write_digest_manifest
from zerotools.ops.verification.verify import prepare, verify

TAG = "global_step2"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return copy(DEEPSPEED / "z2-fp32-w2-legacy" / "checkpoint", tmp_path)


def write(path: Path) -> Path:
    given = prepare(path)
    found = verify(given, digests=True, budget=SMALL)
    assert found.manifest is not None
    file = sidecar_of(given.files)
    write_digest_manifest(found.manifest, file, given.files)
    return file


def verified(path: Path) -> Verification:
    return verify(prepare(path), budget=SMALL)


def test_either_is_found_for_either(run: Path) -> None:
    for written in (run, run / TAG):
        file = write(written)
        for path in (run, run / TAG):
            found = verified(path)
            assert found.is_whole
            assert found.comparison is not None
            assert (found.comparison.path, found.comparison.by_files) == (file, True)
        file.unlink()
    assert verified(run).comparison is None


def test_a_changed_file_is_named_by_either(run: Path) -> None:
    write(run)
    file = run / TAG / "mp_rank_00_model_states.pt"
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    assert any(f.file == file.name and "changed" in f.message for f in verified(run / TAG).findings)


def test_the_manifest_around_another_tag_is_none_of_this(run: Path) -> None:
    write(run)
    shutil.copytree(run / TAG, run / "global_step4")
    (run / "latest").write_text("global_step4")
    assert verified(run).comparison is None
    assert verified(run / TAG).comparison is not None


def test_a_link_and_a_dot_are_the_directory_that_they_mean(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "last").symlink_to(run)
    file = write(tmp_path / "last")
    assert file == run.with_name("checkpoint.zerotools.json")
    monkeypatch.chdir(run)
    for path in (Path(), Path(TAG) / "..", run):
        assert verified(path).is_whole
