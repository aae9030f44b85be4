"""A job's checkpoint, and what a reshard makes of it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.formats.copying import tensor_bytes, write
from tests.formats.dcp.test_golden import RANKS
from tests.runs.records import a_record
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.dtypes import BFLOAT16
from zerotools.core.errors import BadRequest
from zerotools.formats.dcp.lay_out_resharded import lay_out as lay_out_dcp
from zerotools.formats.dcp.read import read as read_dcp
from zerotools.io.distcp.metadata import read_metadata
from zerotools.io.output.output_marker import MARKER
from zerotools.runs.find_job_checkpoints import rng_name, verify_checkpoint_files
from zerotools.runs.manifest import read_manifest, write_manifest
from zerotools.runs.training_record import (
    RNG_PER_RANK,
    RNG_RESEED,
    JobRecord,
    ModelRecord,
    write_record,
)

RECORD = a_record(
    step=40,
    steps_total=100,
    precision="bf16",
    consumed_sequences=480,
    sequence_length=64,
    model=ModelRecord(400, 0),
    replicated=("model.buf", "model.big"),
    aliases={"tied": "scale"},
    rng=RNG_PER_RANK,
)


def _job(root: Path, record: JobRecord) -> Path:
    path = root / "step-00000040"
    shutil.copytree(RANKS[record.world_size], path / "dcp")
    for rank in range(record.world_size):
        (path / rng_name(rank)).write_text("{}")
    (path / "config.json").write_text('{"dtype": "float32"}')
    (path / "tokenizer.model").write_bytes(b"\0\1")
    write_record(path, record)
    write_manifest(path)
    return path


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return _job(tmp_path / "run", RECORD)


def test_what_its_record_says(job: Path) -> None:
    checkpoint = formats.read(job.parent)
    origin = checkpoint.origin
    assert (origin.world_size, origin.stage, origin.step) == (2, 3, 40)
    assert origin.precision == BFLOAT16
    assert checkpoint.aliases == {"tied": "scale"}
    assert set(checkpoint.model_sidecars) == {"config.json", "tokenizer.model"}
    assert checkpoint.problems == []
    assert Key("a.weight", "exp_avg") in checkpoint.tensors


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_reshard_is_one_that_the_trainer_would_have_committed(
    tmp_path: Path, job: Path, ranks: int
) -> None:
    source = read_dcp(job)
    target = lay_out_dcp(source, tmp_path / "out" / "step-00000040", world_size=ranks)
    out = write(source, target)
    assert verify_checkpoint_files(out) == replace(RECORD, world_size=ranks, rng=RNG_RESEED)
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert names - {"MANIFEST.json", MARKER} == set(read_manifest(out)) == set(target.files)
    assert not [name for name in names if name.startswith("rank_")]
    assert (out / "tokenizer.model").read_bytes() == b"\0\1"
    assert "2 ranks" in target.notes[0]
    written = read_dcp(out)
    for key in source.tensors:
        assert tensor_bytes(written, key) == tensor_bytes(source, key)
    if ranks in RANKS:
        ours = read_metadata(out / "dcp" / ".metadata").tensors
        torchs = read_metadata(RANKS[ranks] / ".metadata").tensors
        assert {key: [box for box, _ in saved.parts] for key, saved in ours.items()} == {
            key: [box for box, _ in saved.parts] for key, saved in torchs.items()
        }


def test_what_is_replicated_stays_whole_also_from_one_rank(tmp_path: Path) -> None:
    source = read_dcp(_job(tmp_path, replace(RECORD, world_size=1)))
    target = lay_out_dcp(source, tmp_path / "out", world_size=3)
    assert len(target.checkpoint.tensors[Key("big", "param")].chunks) == 1
    assert len(target.checkpoint.tensors[Key("scale", "param")].chunks) == 3


def test_at_stage_0_every_tensor_stays_whole_and_the_files_are_balanced(tmp_path: Path) -> None:
    source = read_dcp(_job(tmp_path, replace(RECORD, stage=0)))
    target = lay_out_dcp(source, tmp_path / "out", world_size=3)
    assert all(len(tensor.chunks) == 1 for tensor in target.checkpoint.tensors.values())
    assert all(target.files[f"dcp/__{rank}_0.distcp"].size > 3000 for rank in range(3))


def test_a_missing_rank_state_is_a_problem(job: Path) -> None:
    (job / rng_name(1)).unlink()
    (problem,) = read_dcp(job).problems
    assert problem.file == rng_name(1)


def test_a_world_size_of_0(tmp_path: Path, job: Path) -> None:
    with pytest.raises(BadRequest, match=r"--world-size is 0, .* at least 1 rank"):
        lay_out_dcp(read_dcp(job), tmp_path / "out", world_size=0)
