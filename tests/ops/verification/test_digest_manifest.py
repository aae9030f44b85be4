from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xxhash
from safetensors.numpy import load_file, save_file

from tests.golden_files import DEEPSPEED, TORCH
from tests.ops.verification.damage import SMALL, copy
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.ops.verification.digest_manifest import (
    read_digest_manifest,
    sidecar_of,
    write_digest_manifest,
)
from zerotools.ops.verification.verification_result import Verification
from zerotools.ops.verification.verify import ToVerify, carry_out_verify, prepare_verify

SAFETENSORS = TORCH / "fsdp2-hf-sharded-w2" / "checkpoint"


@pytest.fixture
def given(tmp_path: Path) -> ToVerify:
    return prepare_verify(copy(SAFETENSORS, tmp_path))


@pytest.fixture
def written(given: ToVerify) -> Path:
    found = carry_out_verify(given, digests=True, budget=SMALL)
    assert found.manifest is not None
    path = sidecar_of(given.files)
    write_digest_manifest(found.manifest, path, given.files)
    return path


def test_what_was_written_is_read(given: ToVerify, written: Path) -> None:
    assert written == given.files.subject.with_name("checkpoint.zerotools.json")
    found = read_digest_manifest(written)
    assert (
        found
        == carry_out_verify(
            prepare_verify(given.files.subject), digests=True, budget=SMALL
        ).manifest
    )
    assert set(found.tensors) == set(given.checkpoint.tensors)
    assert set(found.files) == set(given.files.names)


@pytest.mark.parametrize("at", range(0, 400, 23))
def test_a_changed_manifest_is_refused(written: Path, at: int) -> None:
    data = bytearray(written.read_bytes())
    while data[at : at + 1].isspace():
        at += 1
    data[at] ^= 1
    written.write_bytes(data)
    with pytest.raises((BadFile, Unsupported), match=written.name):
        read_digest_manifest(written)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda tree: tree.update(schema="zerotools.manifest/2"), Unsupported),
        (lambda tree: tree.update(algorithm="sha256"), Unsupported),
        (lambda tree: tree.update(schema="zerotools.inspect/1"), BadFile),
        (lambda tree: tree.pop("digest"), BadFile),
        (lambda tree: tree["tensors"][0].update(shape=[-1]), BadFile),
    ],
)
def test_another_version_is_told_from_damage(
    written: Path, change: Callable[[Any], None], error: type[Exception]
) -> None:
    tree = json.loads(written.read_text())
    change(tree)
    written.write_text(json.dumps(tree))
    with pytest.raises(error, match=written.name):
        read_digest_manifest(written)


def test_another_program_computes_it_by_the_documentation(tmp_path: Path) -> None:
    """docs/reference/digest-manifest.md, and nothing of zerotools."""
    values = np.random.default_rng(2).normal(size=(3, 400_000)).astype(np.float32)
    save_file({"w": values, "häufig": np.arange(5)}, tmp_path / "model.safetensors")
    given = prepare_verify(tmp_path / "model.safetensors")
    found = carry_out_verify(given, digests=True, budget=SMALL).manifest
    assert found is not None
    write_digest_manifest(found, tmp_path / "m.json", given.files)
    tree = json.loads((tmp_path / "m.json").read_text())
    own = tree.pop("digest")
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    assert own == xxhash.xxh3_128_hexdigest(text.encode())
    raw = (tmp_path / "model.safetensors").read_bytes()
    assert tree["files"] == {"model.safetensors": {"size": len(raw), "digest": documented(raw, 1)}}
    stored = load_file(tmp_path / "model.safetensors")
    for each in tree["tensors"]:
        array = stored[each["name"]]
        assert each["digest"] == documented(array.tobytes(), array.itemsize)
        types = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
        casts = {
            name: documented(array.astype(dtype).tobytes(), 2) for name, dtype in types.items()
        }
        assert each["casts"] == (casts if array.dtype.kind == "f" else {})


def documented(raw: bytes, itemsize: int) -> str:
    size = 2**20 * itemsize
    blocks = [raw[at : at + size] for at in range(0, len(raw), size)]
    return str(xxhash.xxh3_128_hexdigest(b"".join(map(xxhash.xxh3_128_digest, blocks))))


def test_it_is_never_written_inside_or_over_something_else(
    tmp_path: Path, given: ToVerify, written: Path
) -> None:
    manifest = read_digest_manifest(written)
    with pytest.raises(BadRequest, match="is inside the checkpoint"):
        write_digest_manifest(manifest, given.files.subject / "m.json", given.files)
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(BadRequest, match="is not a manifest"):
        write_digest_manifest(manifest, tmp_path / "notes", given.files)
    write_digest_manifest(manifest, written, given.files)


TAG = "global_step2"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return copy(DEEPSPEED / "z2-fp32-w2-legacy" / "checkpoint", tmp_path)


def write(path: Path) -> Path:
    given = prepare_verify(path)
    found = carry_out_verify(given, digests=True, budget=SMALL)
    assert found.manifest is not None
    file = sidecar_of(given.files)
    write_digest_manifest(found.manifest, file, given.files)
    return file


def verified(path: Path) -> Verification:
    return carry_out_verify(prepare_verify(path), budget=SMALL)


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
