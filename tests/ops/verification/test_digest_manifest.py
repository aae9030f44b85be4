from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.golden_files import TORCH
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.ops.verification.digest_manifest import (
    read_digest_manifest,
    sidecar_of,
    write_digest_manifest,
)
from zerotools.ops.verification.verify import ToVerify, prepare, verify

from .damage import SMALL, copy

SAFETENSORS = TORCH / "fsdp2-hf-sharded-w2" / "checkpoint"


@pytest.fixture
def given(tmp_path: Path) -> ToVerify:
    return prepare(copy(SAFETENSORS, tmp_path))


@pytest.fixture
def written(given: ToVerify) -> Path:
    found = verify(given, digests=True, budget=SMALL)
    assert found.manifest is not None
    path = sidecar_of(given.files)
    write_digest_manifest(found.manifest, path, given.files)
    return path


def test_what_was_written_is_read(given: ToVerify, written: Path) -> None:
    assert written == given.files.subject.with_name("checkpoint.zerotools.json")
    found = read_digest_manifest(written)
    assert found == verify(prepare(given.files.subject), digests=True, budget=SMALL).manifest
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
