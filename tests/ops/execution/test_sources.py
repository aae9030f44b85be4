"""A source that changes between planning and commit: no output ever holds bytes of two saves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import zerotools
from tests.golden_files import DEEPSPEED, GOLDEN, JOB, TORCH
from tests.ops.exports import model, noise
from zerotools import formats
from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.open_source import OpenablePath
from zerotools.ops.conversions import consolidate, convert, reshard
from zerotools.ops.conversions.consolidate import Options
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.tile_workers import MIN_TILE_BYTES, MemoryBudget

BUDGET = MemoryBudget(max_memory=2 * 3 * MIN_TILE_BYTES, workers=2)


def saved_again(file: Path) -> None:
    """Another file of the same size takes the name, as a save that renames its files does; its
    time is the same, as a copy that keeps times makes it."""
    status = file.stat()
    new = file.with_name(f"{file.name}.new")
    new.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    new.replace(file)


def written_in_place(file: Path) -> None:
    with file.open("r+b") as opened:
        last = file.stat().st_size - 1
        opened.seek(last)
        byte = opened.read(1)[0]
        opened.seek(last)
        opened.write(bytes([byte ^ 1]))
    status = file.stat()  # whatever the clock of the file system can tell apart
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def grown(file: Path) -> None:
    with file.open("ab") as opened:
        opened.write(b"\0")


def removed(file: Path) -> None:
    file.unlink()


CHANGES = {
    "another file has replaced it": saved_again,
    "it was last written at": written_in_place,
    r"it had \d+ bytes and has \d+": grown,
    "is missing|it is gone": removed,
}


@pytest.fixture
def zero(tmp_path: Path) -> Path:
    """A run of ZeRO-2 on two ranks."""
    return shutil.copytree(DEEPSPEED / "z2-bf16-w2" / "checkpoint", tmp_path / "run")


def only(directory: Path, pattern: str) -> Path:
    (found,) = directory.rglob(pattern)
    return found


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("why", CHANGES)
def test_a_shard_of_the_next_save_is_refused(
    zero: Path, tmp_path: Path, why: str, verify: bool
) -> None:
    conversion = consolidate.prepare_export(zero, tmp_path / "out", Options())
    shard = only(zero, "*zero_pp_rank_1_mp_rank_00_optim_states.pt")
    CHANGES[why](shard)
    with pytest.raises(BadFile, match=f"{shard.name}.* ({why})"):
        perform_conversion(conversion, budget=BUDGET, overwrite=False, verify=verify)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.parametrize("verify", [False, True])
def test_a_shard_that_changes_after_it_was_copied_is_found_before_the_commit(
    zero: Path, tmp_path: Path, verify: bool
) -> None:
    conversion = consolidate.prepare_export(zero, tmp_path / "out", Options())
    shard = only(zero, "*zero_pp_rank_1_mp_rank_00_optim_states.pt")
    left = [conversion.bytes_of_tensors * (2 if verify else 1)]

    def on_bytes(count: int) -> None:
        left[0] -= count
        if not left[0]:
            written_in_place(shard)

    with pytest.raises(
        BadFile, match=f"{shard.name} changed while it was read: .* take a finished"
    ):
        perform_conversion(
            conversion, budget=BUDGET, overwrite=False, verify=verify, on_bytes=on_bytes
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def to_dcp(source: Path, out: Path) -> Conversion:
    done = reshard.prepare_reshard(source, out, world_size=3)
    assert isinstance(done, Conversion)
    return done


def to_torch(source: Path, out: Path) -> Conversion:
    done = convert.prepare_convert(source, out, "torch", {})
    assert isinstance(done, Conversion)
    return done


def to_model(source: Path, out: Path) -> Conversion:
    return consolidate.prepare_export(source, out, Options())


@pytest.mark.parametrize(
    ("source", "file", "prepare"),
    [
        (JOB, "dcp/.metadata", to_model),
        (JOB, "config.json", to_model),
        (JOB, "job.json", to_model),
        (JOB, "dcp/__1_0.distcp", to_dcp),
        (
            DEEPSPEED / "hf-trainer-z2-bf16-w2" / "checkpoint",
            "checkpoint-*/trainer_state.json",
            to_dcp,
        ),
        (DEEPSPEED / "hf-trainer-z2-bf16-w2" / "checkpoint", "checkpoint-*/config.json", to_model),
        (DEEPSPEED / "universal-z2-bf16-w3" / "checkpoint", "**/exp_avg.pt", to_torch),
        (
            DEEPSPEED / "universal-z2-bf16-w3" / "checkpoint",
            "**/mp_rank_00_model_states.pt",
            to_model,
        ),
        (TORCH / "fsdp2-verl-w3" / "checkpoint", "**/fsdp_config.json", to_model),
    ],
)
def test_every_file_that_was_read_is_looked_at_again(
    tmp_path: Path, source: Path, file: str, prepare: Callable[[Path, Path], Conversion]
) -> None:
    copy = shutil.copytree(source, tmp_path / "step-00000003")
    conversion = prepare(copy, tmp_path / "out")
    changed = sorted(copy.glob(file))[0]
    saved_again(changed)
    with pytest.raises(BadFile, match=rf"{changed.name} changed while it was read: another file"):
        perform_conversion(conversion, budget=BUDGET, overwrite=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003"]


@pytest.mark.parametrize("changed", ["in/model.safetensors.index.json", "whole/model.safetensors"])
def test_an_index_and_a_model_to_be_like_are_looked_at_too(tmp_path: Path, changed: str) -> None:
    model(tmp_path / "whole", {name: noise(40, 50) for name in "abc"})
    shards = consolidate.prepare_export(
        tmp_path / "whole", tmp_path / "in", Options(max_shard_bytes=5000)
    )
    perform_conversion(shards, budget=BUDGET, overwrite=False)
    options = Options(like=tmp_path / "whole")
    conversion = consolidate.prepare_export(tmp_path / "in", tmp_path / "out", options)
    written_in_place(tmp_path / changed)
    with pytest.raises(BadFile, match=f"{changed} changed while it was read"):
        perform_conversion(conversion, budget=BUDGET, overwrite=False)


def test_nothing_changes_where_nothing_changed(zero: Path, tmp_path: Path) -> None:
    conversion = consolidate.prepare_export(zero, tmp_path / "out", Options())
    shard = only(zero, "*zero_pp_rank_1_mp_rank_00_optim_states.pt")
    shard.chmod(0o440)
    os.utime(shard, ns=(1, shard.stat().st_mtime_ns))  # read by somebody
    (zero / "latest").write_text("the next save")
    perform_conversion(conversion, budget=BUDGET, overwrite=False, verify=True)


def test_a_resumed_run_knows_the_files_of_the_first(zero: Path, tmp_path: Path) -> None:
    class Stop(KeyboardInterrupt):
        pass

    def stop(_: int) -> None:
        raise Stop

    conversion = consolidate.prepare_export(zero, tmp_path / "out", Options())
    with pytest.raises(Stop):
        perform_conversion(conversion, budget=BUDGET, overwrite=False, on_bytes=stop)
    shard = only(zero, "*zero_pp_rank_1_mp_rank_00_optim_states.pt")
    copy = shutil.copy2(shard, zero / "copy")
    copy.replace(shard)  # the same size, time and bytes, and another file
    again = consolidate.prepare_export(zero, tmp_path / "out", Options())
    with pytest.raises(BadRequest, match="had other source files; leave --resume out"):
        perform_conversion(again, budget=BUDGET, overwrite=False, resume=True)


def test_the_python_reader_refuses_a_file_that_changed(zero: Path) -> None:
    reader = zerotools.open(zero)
    assert [entry.numpy().shape for entry in reader.values()]
    saved_again(only(zero, "*zero_pp_rank_1_mp_rank_00_optim_states.pt"))
    with pytest.raises(BadFile, match="another file has replaced it"):
        _ = [entry.numpy() for entry in reader.values()]


CASES = sorted(GOLDEN.glob("*/*/checkpoint"))[::3]


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.parent.name)
def test_every_reader_stamps_every_file_that_holds_a_tensor(case: Path) -> None:
    checkpoint = formats.read(case)
    held = {checkpoint.root / c.file for t in checkpoint.tensors.values() for c in t.chunks}
    assert held
    for path in held:  # the elements of an array of Orbax are in files of its item
        is_array = isinstance(path, OpenablePath)
        files = {p for p in checkpoint.stamps if path.parent in p.parents} if is_array else {path}
        assert files, path
        assert {each.absolute() for each in files} <= checkpoint.stamps.keys()
    for path, stamp in checkpoint.stamps.items():
        assert stamp.size == path.stat().st_size
