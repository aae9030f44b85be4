from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.golden_files import DEEPSPEED, JOB
from tests.layouts import load
from zerotools import formats
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.output.staging import partial_of
from zerotools.ops.conversions import convert
from zerotools.ops.conversions.conversion import Conversion, Unchanged, perform_conversion
from zerotools.ops.conversions.reshard import prepare_reshard
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.verification import verify
from zerotools.runs.manifest import verify_manifest


def reshard(path: Path, destination: Path, world_size: int) -> Checkpoint:
    conversion = prepare_reshard(path, destination, world_size=world_size)
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False)
    return formats.read(destination)


def contents(checkpoint: Checkpoint) -> dict[str, bytes]:
    return {str(key): load(checkpoint, key).tobytes() for key in checkpoint.tensors}


@pytest.mark.parametrize("world_size", [1, 3, 4, 7])
def test_every_byte_arrives_and_the_manifest_holds(tmp_path: Path, world_size: int) -> None:
    out = tmp_path / "out"
    resharded = reshard(JOB, out, world_size)
    assert contents(resharded) == contents(formats.read(JOB))
    assert resharded.origin.world_size == world_size
    assert len(list(out.glob("dcp/__*_0.distcp"))) == world_size
    assert verify_manifest(out) == []


@pytest.mark.parametrize("ranks", [(2, 3), (3, 4), (4, 3)])
def test_ranks_that_have_only_empty_shards_are_ranks(
    tmp_path: Path, ranks: tuple[int, int]
) -> None:
    rows = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}
    save_file(rows, tmp_path / "model.safetensors")
    first = tmp_path / "first"
    done = convert.prepare_convert(
        tmp_path / "model.safetensors", first, "dcp", {"world_size": ranks[0]}
    )
    assert isinstance(done, Conversion)
    perform_conversion(done, budget=MemoryBudget(), overwrite=False, verify=True)
    again = prepare_reshard(first, tmp_path / "second", world_size=ranks[1])
    assert isinstance(again, Conversion)
    perform_conversion(again, budget=MemoryBudget(), overwrite=False, verify=True)
    assert formats.read(first).origin.world_size == ranks[0]
    assert formats.read(tmp_path / "second").origin.world_size == ranks[1]
    assert contents(formats.read(tmp_path / "second")) == contents(formats.read(first))
    (tmp_path / "second" / ".zerotools-output.json").unlink()  # whose digests are not asked
    found = verify.carry_out_verify(verify.prepare_verify(tmp_path / "second"))
    assert found.findings == ()


def test_there_and_back_is_where_we_started(tmp_path: Path) -> None:
    reshard(JOB, tmp_path / "three", 3)
    back = reshard(tmp_path / "three", tmp_path / "two", 2)
    original = formats.read(JOB)
    assert contents(back) == contents(original)
    for key, tensor in original.tensors.items():
        boxes = {chunk.box for chunk in back.tensors[key].chunks}
        assert boxes == {chunk.box for chunk in tensor.chunks}


def test_the_job_record_says_what_was_done(tmp_path: Path) -> None:
    reshard(JOB, tmp_path / "out", 3)
    before = json.loads((JOB / "job.json").read_text())
    after = json.loads((tmp_path / "out/job.json").read_text())
    assert (after["world_size"], after["rng"]) == (3, "reseed")
    assert {**after, "world_size": 2, "rng": "per-rank"} == before
    assert not list((tmp_path / "out").glob("rank_*.json"))


def test_the_same_world_size_is_nothing_to_do(tmp_path: Path) -> None:
    assert isinstance(prepare_reshard(JOB, tmp_path / "out", world_size=2), Unchanged)
    assert isinstance(prepare_reshard(JOB, tmp_path / "out", world_size=2, force=True), Conversion)


@pytest.mark.parametrize("world_size", [0, 10**8])
def test_a_number_of_ranks_that_no_run_has_is_refused(tmp_path: Path, world_size: int) -> None:
    with pytest.raises(BadRequest, match=f"--world-size is {world_size}"):
        prepare_reshard(JOB, tmp_path / "out", world_size=world_size)


def test_a_deepspeed_checkpoint_is_resharded_and_verified(tmp_path: Path) -> None:
    saved = DEEPSPEED / "z2-bf16-w2" / "checkpoint"
    conversion = prepare_reshard(saved, tmp_path / "out", world_size=3)
    assert isinstance(conversion, Conversion)
    assert "x 2 ranks = 2; with 3 ranks it cannot stay the same" in conversion.notes[-1]
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    found = formats.read(tmp_path / "out")
    assert contents(found) == contents(formats.read(saved))
    assert found.origin.world_size == 3
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=True)
    assert isinstance(
        prepare_reshard(tmp_path / "out", tmp_path / "again", world_size=3), Unchanged
    )


@pytest.mark.parametrize("case", ["tensor-parallel-z1-bf16-w4", "pipeline-z1-fp32-w4"])
def test_every_model_parallel_rank_is_resharded(tmp_path: Path, case: str) -> None:
    source = DEEPSPEED / case / "checkpoint"
    conversion = prepare_reshard(source, tmp_path / "out", world_size=8)
    assert isinstance(conversion, Conversion)
    assert conversion.target.dropped == ()
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    assert contents(formats.read(tmp_path / "out")) == contents(formats.read(source))


def test_settings_that_the_next_run_needs_are_said(tmp_path: Path) -> None:
    saved = DEEPSPEED / "z2-fp32-w4-round-robin" / "checkpoint"
    conversion = prepare_reshard(saved, tmp_path / "out", world_size=3)
    assert any('{"round_robin_gradients": true}' in note for note in conversion.notes)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_rank_is_refused_and_nothing_is_written(tmp_path: Path, rank: int) -> None:
    saved = tmp_path / "saved"
    shutil.copytree(DEEPSPEED / "z2-fp32-w2" / "checkpoint", saved)
    name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
    (saved / "global_step2" / name).unlink()
    with pytest.raises(BadFile, match=f"{name} is missing"):
        reshard(saved, tmp_path / "out", 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved"]


def test_carried_weights_that_the_disk_lost_are_found(tmp_path: Path) -> None:
    saved = DEEPSPEED / "z2-fp32-w2" / "checkpoint"
    conversion = prepare_reshard(saved, tmp_path / "out", world_size=3)
    assert isinstance(conversion, Conversion)
    file = "global_step2/mp_rank_00_model_states.pt"
    carried = conversion.target.files[file].carried[0]

    def damage(_: int) -> None:
        path = partial_of(tmp_path / "out") / file
        with path.open("r+b") as opened:
            opened.seek(carried.offset)
            opened.write(b"\xff\xff")

    with pytest.raises(BadFile, match=r"mp_rank_00_model_states\.pt differs from"):
        perform_conversion(
            conversion, budget=MemoryBudget(), overwrite=False, verify=True, on_bytes=damage
        )
    assert not (tmp_path / "out").exists()
