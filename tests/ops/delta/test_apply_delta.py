"""Deltas of real models: what is applied equals the second model, and what does not fit is
refused before anything is written."""

from __future__ import annotations

import errno
import fcntl
import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zerotools
from tests.golden_files import DEEPSPEED, TORCH
from tests.ops.delta.pairs import BF16, LARGE, files_of, loaded, raw, stepped, weights, write_model
from zerotools.core.dtypes import FLOAT32
from zerotools.io.output.output_marker import MARKER
from zerotools.io.output.staging import PROBE, partial_of
from zerotools.ops.delta.block_codec import Compression, DeltaBlockKind, EncodedBlock
from zerotools.ops.delta.delta_file import (
    DeltaHeader,
    DeltaPlainFile,
    DeltaTensor,
    DeltaWriter,
    digest_of,
)
from zerotools.ops.verification.verification_result import Soundness

ZERO3 = DEEPSPEED / "z3-bf16-w2" / "checkpoint"


def test_a_model_of_other_shards_comes_back(pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    a, b, delta = pair
    done = zerotools.apply(a, delta, out=tmp_path / "made")
    assert loaded(tmp_path / "made") == loaded(b)
    assert json.loads((tmp_path / "made/config.json").read_text())["vocab_size"] == 7
    assert (done.tensors, done.files) == (6, 2)
    assert delta.stat().st_size < done.bytes_written / 50
    assert zerotools.diff(b, tmp_path / "made").is_equal


def test_a_delta_may_come_through_a_pipe(pair: tuple[Path, Path, Path], tmp_path: Path) -> None:
    a, b, delta = pair
    source, sink = os.pipe()
    os.write(sink, delta.read_bytes())
    os.close(sink)
    zerotools.apply(a, f"/dev/fd/{source}", out=tmp_path / "made")
    os.close(source)
    assert loaded(tmp_path / "made") == loaded(b)


def test_deltas_are_written_to_and_read_from_file_objects(
    pair: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    a, b, delta = pair
    memory = io.BytesIO(b"kept")
    memory.seek(4)
    found = zerotools.delta(a, b, memory)
    assert memory.getvalue() == b"kept" + delta.read_bytes()
    assert found.delta_bytes == delta.stat().st_size
    with pytest.raises(zerotools.BadFile, match="the file object is empty, so it is not a delta"):
        zerotools.apply(a, memory, tmp_path / "made")
    memory.seek(4)
    zerotools.apply(a, memory, tmp_path / "made")
    assert loaded(tmp_path / "made") == loaded(b)
    source, sink = os.pipe()
    with open(sink, "wb", buffering=0) as raw:  # noqa: PTH123  # a file descriptor
        zerotools.delta(b, a, raw)
        assert not raw.closed
    with open(source, "rb") as back, gzip.open(tmp_path / "d.gz", "wb") as packed:  # noqa: PTH123
        packed.write(delta.read_bytes())
        packed.close()
        with gzip.open(tmp_path / "d.gz") as forth:
            zerotools.apply(a, [forth, back, delta], tmp_path / "thrice")
    assert loaded(tmp_path / "thrice") == loaded(b)
    with pytest.raises(zerotools.BadRequest, match="is a file object for text; open"):
        zerotools.delta(a, b, io.StringIO())
    with pytest.raises(zerotools.BadRequest, match="is not a path"):
        zerotools.apply(a, 3, tmp_path / "other")


def test_the_result_says_what_changed(tmp_path: Path) -> None:
    tensors = weights()
    moved = {**tensors, "extra": np.ones(3, np.float32), "scale": np.array(2.0, BF16)}
    del moved["b.weight"]
    a, b = write_model(tmp_path / "a", tensors), write_model(tmp_path / "b", moved)
    found = zerotools.delta(a, b, tmp_path / "d")
    assert (found.changed, found.new_tensors) == (1 + 3, ("extra",))
    assert found.elements == sum(array.size for array in moved.values())
    assert found.delta_bytes == (tmp_path / "d").stat().st_size
    zerotools.apply(a, tmp_path / "d", out=tmp_path / "made")
    assert loaded(tmp_path / "made") == raw(moved)


def test_two_equal_models_have_a_delta_that_changes_nothing(tmp_path: Path) -> None:
    a = write_model(tmp_path / "a", weights())
    found = zerotools.delta(a, a, tmp_path / "d")
    assert found.changed == 0
    assert found.delta_bytes < 4096
    zerotools.apply(a, tmp_path / "d", out=tmp_path / "made")
    assert loaded(tmp_path / "made") == loaded(a)


@pytest.mark.parametrize(
    "path", [ZERO3, TORCH / "fsdp2-tp-dcp-w4" / "checkpoint"], ids=["zero3", "dcp"]
)
def test_a_sharded_checkpoint_is_either_side(path: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    zerotools.consolidate(path, model, dtype="bf16")
    found = zerotools.delta(model, path, tmp_path / "d", dtype="bf16")
    assert found.changed == 0, "the fp32 masters, cast to bf16, are the served model"
    zerotools.apply(path, tmp_path / "d", out=tmp_path / "made")
    assert loaded(tmp_path / "made") == loaded(model)
    wide = tmp_path / "wide"
    zerotools.consolidate(path, wide, dtype="fp32")
    zerotools.delta(path, wide, tmp_path / "wide.delta")
    zerotools.apply(path, tmp_path / "wide.delta", out=tmp_path / "again")
    assert loaded(tmp_path / "again") == loaded(wide)


def test_deltas_follow_one_another_also_over_a_cast(tmp_path: Path) -> None:
    wide = weights(dtype=np.float32)
    steps: list[dict[str, Any]] = [wide, stepped(wide, 0.1, 1)]
    narrow = {n: a.astype(BF16) if a.dtype == np.float32 else a for n, a in steps[1].items()}
    steps += [narrow, stepped(narrow, 0.3, 2)]
    paths = [write_model(tmp_path / f"m{n}", each) for n, each in enumerate(steps)]
    deltas = []
    for n, (a, b) in enumerate(pairwise(paths)):
        deltas.append(tmp_path / f"{n}.delta")
        zerotools.delta(a, b, deltas[-1])
    assert deltas[1].stat().st_size < 4096, "the cast alone changes nothing"
    for count in range(1, 4):
        made = tmp_path / f"made{count}"
        zerotools.apply(paths[0], deltas[:count], out=made)
        assert loaded(made) == raw(steps[count])
    with pytest.raises(zerotools.BadRequest, match=r"2\.delta was made from another model than"):
        zerotools.apply(paths[0], deltas[2], out=tmp_path / "wrong")
    with pytest.raises(zerotools.BadRequest, match=r"was applied to .* before"):
        zerotools.apply(paths[0], [deltas[0], deltas[0]], out=tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_a_served_directory_is_changed_in_one_step(pair: tuple[Path, Path, Path]) -> None:
    a, b, delta = pair
    (a / "README.md").write_text("mine")
    (a / "extra").mkdir()
    (a / "extra" / "notes.txt").write_text("also mine")
    (a / "link").symlink_to("README.md")
    manifest = a.with_name("a.zerotools.json")
    zerotools.verify(a, write_manifest=True)
    assert manifest.is_file()
    with (a / "model.safetensors").open("rb") as served:
        before = served.read()
        zerotools.apply(a, delta)
        served.seek(0)
        assert served.read() == before, "an open file is still the old one"
    assert loaded(a) == loaded(b)
    assert (a / "README.md").read_text() == (a / "link").read_text() == "mine"
    assert (a / "extra" / "notes.txt").read_text() == "also mine"
    assert (a / MARKER).is_file()
    assert not manifest.exists()
    assert {each.name for each in a.parent.iterdir()} == {"a", "b", "ab.delta"}
    assert zerotools.verify(a).verdict is Soundness.UNCHECKED
    with pytest.raises(zerotools.BadRequest, match=r"was applied to .* before: \S+ has its"):
        zerotools.apply(a, delta)
    assert loaded(a) == loaded(b)


def test_a_snapshot_of_the_cache_of_the_hub_gets_files_and_its_blobs_stay(
    pair: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    a, b, delta = pair
    (a / "README.md").write_text("mine")
    (a / "config.json").chmod(0o644)
    (a / "model.safetensors").chmod(0o600)
    (tmp_path / "models--me--tiny" / "blobs").mkdir(parents=True)
    snapshots = [tmp_path / "models--me--tiny" / "snapshots" / name for name in ("1", "2")]
    for snapshot in snapshots:
        snapshot.mkdir(parents=True)
    (snapshots[0] / "current").symlink_to("../2")
    blobs = {}
    for number, path in enumerate(sorted(a.iterdir())):
        blob = tmp_path / "models--me--tiny" / "blobs" / f"9c{number}"
        path.rename(blob)
        blobs[blob] = blob.read_bytes()
        for snapshot in snapshots:
            (snapshot / path.name).symlink_to(f"../../blobs/{blob.name}")
    zerotools.apply(snapshots[0], delta)
    assert loaded(snapshots[0]) == loaded(b)
    assert {blob: blob.read_bytes() for blob in blobs} == blobs
    links = {each.name for each in snapshots[0].iterdir() if each.is_symlink()}
    assert links == {"README.md", "current"}
    assert (snapshots[0] / "README.md").read_text() == "mine"
    assert (snapshots[0] / "config.json").stat().st_mode & 0o777 == 0o644
    assert all(each.is_symlink() for each in snapshots[1].iterdir())


def test_what_is_not_changed_in_place_is_named(pair: tuple[Path, Path, Path]) -> None:
    a, _, delta = pair
    link = a.with_name("current")
    link.symlink_to("a")
    with pytest.raises(zerotools.BadRequest, match=f"current is a symbolic link; name .* {a},"):
        zerotools.apply(link, delta)
    zerotools.consolidate(a, a.with_name("bin"), format="torch", dtype="bf16")
    zerotools.delta(a.with_name("bin"), a, delta, overwrite=True)
    with pytest.raises(zerotools.BadRequest, match="has other files of weights than safetensors"):
        zerotools.apply(a.with_name("bin"), delta)
    with pytest.raises(zerotools.BadRequest, match="is not a directory, so it"):
        zerotools.apply(a / "model.safetensors", delta)


def test_a_checkpoint_of_a_run_is_not_changed_in_place(tmp_path: Path) -> None:
    run = shutil.copytree(ZERO3, tmp_path / "run")
    zerotools.delta(run, run, tmp_path / "d")
    for path in (run, run / "global_step2"):
        before = sorted(run.rglob("*"))
        with pytest.raises(zerotools.BadRequest, match="would lose its optimizer state"):
            zerotools.apply(path, tmp_path / "d")
        assert sorted(run.rglob("*")) == before


def test_what_appears_or_changes_during_the_work_is_refused(pair: tuple[Path, Path, Path]) -> None:
    a, _, delta = pair
    before = loaded(a)
    with pytest.raises(zerotools.BadFile, match=r"log\.txt changed .* it is new"):
        zerotools.apply(a, delta, progress=lambda _: (a / "log.txt").touch())
    assert loaded(a) == before
    assert (a / "log.txt").exists()
    with pytest.raises(zerotools.BadFile, match=r"ab\.delta changed while it was applied"):
        zerotools.apply(a, delta, out=a.with_name("c"), progress=lambda _: os.utime(delta, (1, 1)))
    assert {each.name for each in a.parent.iterdir()} == {"a", "b", "ab.delta"}


def test_what_a_kill_leaves_of_the_replaced_model_does_not_block(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, delta = pair
    zerotools.delta(b, b, delta.with_name("bb.delta"))
    partial_of(a).mkdir()
    (partial_of(a) / PROBE).touch()
    (a / "notes.txt").touch()
    unlink = Path.unlink

    def killed(path: Path, *, missing_ok: bool = False) -> None:
        if path == partial_of(a) / "model.safetensors":
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            zerotools.apply(a, delta)
    assert (partial_of(a) / "model.safetensors").exists()
    zerotools.apply(a, delta.with_name("bb.delta"))
    assert loaded(a) == loaded(b)
    assert (a / "notes.txt").exists()
    assert not partial_of(a).exists()


def test_owners_and_permissions_stay_in_place(pair: tuple[Path, Path, Path]) -> None:
    a, _, delta = pair
    (a / "model.safetensors").chmod(0o600)
    a.chmod(0o750)
    owner = os.geteuid() or 65534  # root keeps another user's
    for each in (a, *a.iterdir()):
        os.chown(each, owner, -1)
    zerotools.apply(a, delta)
    assert {each.stat().st_uid for each in (a, a / MARKER, *a.iterdir())} == {owner}
    assert a.stat().st_mode & 0o777 == 0o750
    modes = {each.stat().st_mode & 0o777 for each in a.glob("*.safetensors")}
    assert modes == {0o600}


def hostile(path: Path, file: DeltaPlainFile, plain: bytes = b"") -> Path:
    """Write a delta of the model with one tensor of ten zeros that also has `file`."""
    tensor = DeltaTensor("w", "param", FLOAT32, (10,), "model.safetensors", 0)
    header = DeltaHeader((DeltaPlainFile("model.safetensors", 40, ()), file), (tensor,))
    with path.open("wb") as stream:
        writer = DeltaWriter(stream, header, Compression().pack(plain))
        same = digest_of(bytes(40))
        writer.block(EncodedBlock(DeltaBlockKind.SAME, 0, b"", b""), same, same)
        writer.end()
    return path


def test_a_link_in_the_directory_leads_no_file_of_a_delta_out_of_it(tmp_path: Path) -> None:
    a = write_model(tmp_path / "a", {"w": np.zeros(10, np.float32)})
    (tmp_path / "home").mkdir()
    (a / "sub").symlink_to("../home")
    delta = hostile(tmp_path / "d", DeltaPlainFile("sub/x", 1, ((0, 1),)), b"x")
    with pytest.raises(
        zerotools.BadRequest, match="sub is a file in one of the two directories and a directory"
    ):
        zerotools.apply(a, delta)
    assert not list((tmp_path / "home").iterdir())
    assert (a / "sub").is_symlink()


def test_a_file_of_the_model_has_the_size_of_the_delta(tmp_path: Path) -> None:
    a = write_model(tmp_path / "a", {"w": np.zeros(10, np.float32)})
    (a / "tokenizer.json").write_text("{}")
    digest = digest_of(b"{}").hex()
    delta = hostile(tmp_path / "d", DeltaPlainFile("tokenizer.json", 1 << 40, (), digest))
    with pytest.raises(zerotools.BadRequest, match=r"another tokenizer\.json than"):
        zerotools.apply(a, delta, out=tmp_path / "made")


def test_more_deltas_than_the_stack_is_deep(tmp_path: Path) -> None:
    a = write_model(tmp_path / "a", {"scale": np.array(2.5, BF16)})
    zerotools.delta(a, a, tmp_path / "d")
    zerotools.apply(a, [tmp_path / "d"] * 600, out=tmp_path / "made")
    assert loaded(tmp_path / "made") == loaded(a)


def test_another_base_is_refused_in_one_sentence(pair: tuple[Path, Path, Path]) -> None:
    _, _, delta = pair
    root = delta.parent
    other = write_model(root / "other", weights(seed=5))
    with pytest.raises(zerotools.BadRequest) as found:
        zerotools.apply(other, delta, out=root / "made")
    said = str(found.value)
    assert "was made from another model than" in said
    assert said.endswith(f"apply it to {root / 'a'}")
    part = write_model(root / "part", {"scale": weights()["scale"]})
    with pytest.raises(zerotools.BadRequest, match=r"part has no tensor \S+, which .* changes"):
        zerotools.apply(part, delta, out=root / "made")
    assert not (root / "made").exists()
    assert not partial_of(root / "made").exists()


def test_models_of_other_shapes_have_no_delta(tmp_path: Path) -> None:
    a = write_model(tmp_path / "a", weights())
    b = write_model(tmp_path / "b", {**weights(), "scale": np.ones(3, BF16)})
    c = write_model(tmp_path / "c", {"alone": np.ones(3, BF16)})
    with pytest.raises(zerotools.BadRequest, match=r"scale has shape \[\] in .* but \[3\] in the"):
        zerotools.delta(a, b, tmp_path / "d")
    with pytest.raises(zerotools.BadRequest, match="equal with --map-to hf"):
        zerotools.delta(a, c, tmp_path / "d")
    assert not (tmp_path / "d").exists()
    assert not (tmp_path / "d.partial").exists()


def test_a_damaged_delta_writes_nothing(pair: tuple[Path, Path, Path]) -> None:
    a, _, delta = pair
    whole, out = delta.read_bytes(), delta.with_name("made")
    for data in (whole[:-1], whole[: len(whole) // 2], whole[:100] + b"\0" + whole[101:], b""):
        delta.write_bytes(data)
        with pytest.raises(zerotools.BadFile):
            zerotools.apply(a, delta, out=out)
        with pytest.raises(zerotools.BadFile):
            zerotools.apply(a, delta)
    assert {each.name for each in out.parent.iterdir()} == {"a", "b", "ab.delta"}
    delta.write_bytes(whole)
    zerotools.apply(a, delta, out=out)


def test_a_damaged_model_writes_nothing(pair: tuple[Path, Path, Path]) -> None:
    a, _, delta = pair
    with (a / "model.safetensors").open("r+b") as file:
        file.truncate(1_000_000)
    with pytest.raises(zerotools.BadFile):
        zerotools.apply(a, delta, out=delta.with_name("made"))
    with pytest.raises(zerotools.BadFile):
        zerotools.delta(a, a, delta.with_name("more"))
    assert {each.name for each in delta.parent.iterdir()} == {"a", "b", "ab.delta"}


def test_outputs_are_replaced_only_on_request(pair: tuple[Path, Path, Path]) -> None:
    a, b, delta = pair
    out = delta.with_name("made")
    zerotools.apply(a, delta, out=out)
    with pytest.raises(zerotools.BadRequest, match="exists; choose another output"):
        zerotools.apply(a, delta, out=out)
    with pytest.raises(zerotools.BadRequest, match="exists; choose another output"):
        zerotools.delta(a, b, delta)
    zerotools.apply(a, delta, out=out, overwrite=True)
    zerotools.delta(a, b, delta, overwrite=True)
    with pytest.raises(zerotools.BadRequest, match=r"config\.json is not a delta, so --overwrite"):
        zerotools.delta(a, b, a / "config.json", overwrite=True)
    os.mkfifo(delta.with_name("pipe"))
    with pytest.raises(zerotools.BadRequest, match=r"pipe is not a regular file; write .* -, and"):
        zerotools.delta(a, b, delta.with_name("pipe"), overwrite=True)
    with delta.with_name("ab.delta.partial").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(zerotools.BadRequest, match="another run is writing"):
            zerotools.delta(a, b, delta, overwrite=True)
    with pytest.raises(zerotools.BadRequest, match=r"b has no \.zerotools-output\.json, the list"):
        zerotools.apply(a, delta, out=b, overwrite=True)
    with pytest.raises(zerotools.BadRequest, match="is a directory"):
        zerotools.delta(a, b, a, overwrite=True)
    with pytest.raises(zerotools.BadRequest, match="does not exist"):
        zerotools.apply(a, delta.with_name("gone"), out=out, overwrite=True)
    with pytest.raises(zerotools.BadRequest, match="at least one delta"):
        zerotools.apply(a, [], out)
    with pytest.raises(zerotools.BadRequest, match="in an object store, which cannot replace"):
        zerotools.apply("s3://bucket/made", delta)
    with pytest.raises(zerotools.BadRequest, match="OUT cannot be -; name a directory"):
        zerotools.apply(a, delta, "-")
    with pytest.raises(zerotools.BadRequest, match="full is not a regular file"):
        zerotools.delta(a, b, "/dev/full")


def test_a_compressed_part_of_another_length_is_named_with_its_delta(tmp_path: Path) -> None:
    a = write_model(tmp_path / "a", {"w": np.zeros(10, np.float32)})
    delta = hostile(tmp_path / "d", DeltaPlainFile("x", 9, ((0, 9),)), b"too short")
    zerotools.apply(a, delta, tmp_path / "made")
    delta = hostile(tmp_path / "d", DeltaPlainFile("x", 10, ((0, 10),)), b"too short")
    with pytest.raises(zerotools.BadFile, match="d: files without tensors: a compressed part has"):
        zerotools.apply(a, delta, tmp_path / "again")


def test_a_disk_that_is_full_is_named_with_the_file(
    pair: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _, delta = pair

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("zerotools.ops.delta.apply_delta._write_plain", full)
    with pytest.raises(OSError, match=r"No space left on device: '\S+/made/\S+'"):
        zerotools.apply(a, delta, delta.with_name("made"))
    assert {each.name for each in a.parent.iterdir()} == {"a", "b", "ab.delta"}


def test_large_files_of_the_first_model_are_not_stored(tmp_path: Path) -> None:
    a = write_model(tmp_path / "a", weights())
    b = write_model(tmp_path / "b", stepped(weights(), 0.01))
    words = bytes(np.random.default_rng(0).integers(97, 123, 400_000).astype(np.uint8))
    for path in (a, b):
        (path / "tokenizer.json").write_bytes(b'"' + words + b'"')
    found = zerotools.delta(a, b, tmp_path / "d")
    assert found.delta_bytes < 60_000
    zerotools.apply(a, tmp_path / "d", out=tmp_path / "made")
    assert (tmp_path / "made/tokenizer.json").read_bytes() == (b / "tokenizer.json").read_bytes()
    zerotools.delta(b, b, tmp_path / "e")
    zerotools.apply(a, [tmp_path / "d", tmp_path / "e"], out=tmp_path / "twice")
    assert (tmp_path / "twice/tokenizer.json").read_bytes() == b'"' + words + b'"'
    (b / "tokenizer.json").write_bytes(b'"' + words[::-1] + b'"')
    zerotools.delta(a, b, tmp_path / "f")
    with pytest.raises(zerotools.BadRequest, match=r"/f has another tokenizer\.json than"):
        zerotools.apply(a, [tmp_path / "f", tmp_path / "e"], out=tmp_path / "other")
    (a / "tokenizer.json").write_bytes(b'"' + words[::-1] + b'"')
    with pytest.raises(zerotools.BadRequest, match=r"has another tokenizer\.json than the model"):
        zerotools.apply(a, tmp_path / "d", out=tmp_path / "other")


def test_progress_counts_the_bytes_of_the_model(pair: tuple[Path, Path, Path]) -> None:
    a, b, delta = pair
    told: list[zerotools.ProgressUpdate] = []
    zerotools.delta(a, b, delta, overwrite=True, progress=told.append)
    zerotools.apply(a, delta, out=delta.with_name("made"), progress=told.append)
    assert {each.stage for each in told} == {"delta", "apply"}
    assert all(each.done <= each.total for each in told)
    assert told[-1].done == told[-1].total > 2 * LARGE[0] * LARGE[1]


@pytest.mark.parametrize("order", [[1], [1, 2, 3], [3, 1, 2], [*range(9, 0, -1)]])
def test_parts_write_what_one_run_writes(
    order: list[int], pair: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    a, b, delta = pair
    (a / "tokenizer.json").write_text("x" * 2_000_000)
    (b / "tokenizer.json").write_text("x" * 2_000_000)
    back = tmp_path / "ba.delta"
    zerotools.delta(a, b, delta, overwrite=True)
    zerotools.delta(b, a, back)
    whole = zerotools.apply(a, [delta, back, delta], tmp_path / "whole")
    made, done = tmp_path / "made", 0
    told: list[zerotools.ProgressUpdate] = []
    for at, index in enumerate(order):
        part = (index, len(order))
        found = zerotools.apply(a, [delta, back, delta], made, part=part, progress=told.append)
        assert found.part is not None
        assert {*found.part.missing} <= {*order[at + 1 :]}  # a part may have no bytes
        assert found.bytes_written == found.part.bytes
        done += found.part.bytes
        assert made.exists() == (not found.part.missing)
        assert all(each.done <= each.total for each in told)
    assert done == whole.bytes_written
    assert files_of(made) == files_of(tmp_path / "whole")
    again = zerotools.apply(a, [delta, back, delta], made, part=(1, len(order)))
    assert again.part is not None
    assert again.part.missing == ()
    assert not partial_of(made).exists()


def test_parts_of_other_deltas_are_refused(pair: tuple[Path, Path, Path]) -> None:
    a, b, delta = pair
    back, made = delta.with_name("ba.delta"), delta.with_name("made")
    zerotools.delta(b, a, back)
    zerotools.apply(a, delta, made, part="1/2")
    with pytest.raises(zerotools.BadRequest, match="had other deltas; remove"):
        zerotools.apply(b, back, made, part="2/2")
    with pytest.raises(zerotools.BadRequest, match="begun in 2 parts, but this run is one of 3"):
        zerotools.apply(a, delta, made, part="2/3")
    with pytest.raises(zerotools.BadRequest, match="is being written in 2 parts; run the missing"):
        zerotools.apply(a, delta, made)
    with pytest.raises(zerotools.BadRequest, match="was made from another model than"):
        zerotools.apply(write_model(a.with_name("other"), weights(3)), delta, made, part="2/2")
    with pytest.raises(zerotools.BadRequest, match="in place replaces the directory in one step"):
        zerotools.apply(a, delta, part="2/2")
    assert not made.exists()
    shutil.copytree(a, a.with_name("copy"))
    zerotools.apply(a.with_name("copy"), delta, made, part="2/2")
    assert loaded(made) == loaded(b)


def test_an_interrupted_run_is_continued_on_request(pair: tuple[Path, Path, Path]) -> None:
    a, b, delta = pair
    made = delta.with_name("made")
    program = (
        "import os, signal, sys, zerotools; "
        "zerotools.apply(*sys.argv[1:], workers=1, "
        "progress=lambda _: os.kill(os.getpid(), signal.SIGKILL))"
    )
    killed = subprocess.run([sys.executable, "-c", program, a, delta, made], check=False)
    assert killed.returncode == -signal.SIGKILL
    config = partial_of(made) / "config.json"
    status = config.stat()
    zerotools.delta(b, a, delta.with_name("ba.delta"))
    with pytest.raises(zerotools.BadRequest, match="had other deltas; leave --resume out"):
        zerotools.apply(b, delta.with_name("ba.delta"), made, resume=True)
    with pytest.raises(zerotools.BadRequest, match="always starts over; leave --resume out"):
        zerotools.apply(a, delta, resume=True)
    zerotools.apply(a, delta, made, resume=True)
    assert loaded(made) == loaded(b)
    assert (made / "config.json").stat().st_ino == status.st_ino
    assert not partial_of(made).exists()


def test_the_manifest_of_a_replaced_model_is_removed(pair: tuple[Path, Path, Path]) -> None:
    a, _, delta = pair
    made = delta.with_name("made")
    zerotools.apply(a, delta, made)
    zerotools.verify(made, write_manifest=True)
    zerotools.delta(a, a, delta.with_name("aa.delta"))
    zerotools.apply(a, delta.with_name("aa.delta"), made, overwrite=True)
    assert not made.with_name("made.zerotools.json").exists()
    with pytest.raises(zerotools.BadRequest, match="is inside the checkpoint"):
        zerotools.apply(a, delta, a / "made")
