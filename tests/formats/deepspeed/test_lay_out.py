"""Golden checkpoints, laid out for other numbers of ranks and read again: the same bytes."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.formats.copying import write
from tests.formats.deepspeed.describing import contents, describe
from tests.golden_files import DEEPSPEED
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats import read
from zerotools.formats.deepspeed.lay_out import lay_out
from zerotools.io.torchzip.torchfile import TorchFile

REFUSED = ("universal", "pipeline", "tensor-parallel", "experts", "z0-")
CASES = sorted(
    path.parent
    for path in DEEPSPEED.glob("*/truth.json")
    if not path.parent.name.startswith(REFUSED) and "elastic" not in path.parent.name
)
RANKS = range(1, 6)


def named(path: Path) -> str:
    return path.name


def reshard(source: Checkpoint, out: Path, ranks: int) -> Checkpoint:
    return read(write(source, lay_out(source, out, world_size=ranks)))


@pytest.mark.parametrize("case", CASES, ids=named)
def test_every_tensor_arrives_at_any_number_of_ranks(case: Path, tmp_path: Path) -> None:
    source = read(case / "checkpoint")
    for ranks in RANKS:
        found = reshard(source, tmp_path / str(ranks), ranks)
        assert contents(found) == contents(source)
        assert found.origin.world_size == ranks
        assert found.aliases == source.aliases
        assert not found.problems
        assert {key: found.state[key] for key in ("lr_scheduler", "global_samples")} == {
            key: source.state[key] for key in ("lr_scheduler", "global_samples")
        }


@pytest.mark.parametrize("case", CASES, ids=named)
def test_there_and_back_is_what_deepspeed_wrote(case: Path, tmp_path: Path) -> None:
    """Every vector, number and list of the files at N is DeepSpeed's own, padding included."""
    source = read(case / "checkpoint")
    ranks = source.origin.world_size or 1
    there = reshard(source, tmp_path / "there", ranks + 1)
    back = reshard(there, tmp_path / "back", ranks)
    for file in source.files:
        if "leftovers" not in case.name:
            assert described(back, file) == described(source, file), file


def described(checkpoint: Checkpoint, name: str) -> Any:
    file = TorchFile.open(checkpoint.root, name)
    if is_round_robin(file.tree):
        # DeepSpeed's own are of the order without round robin; ours are of the real one.
        file.tree.get("optimizer_state_dict", {}).pop("param_slice_mappings", None)
    return describe(file)


def is_round_robin(tree: Any) -> bool:
    return bool(tree["ds_config"]["zero_optimization"].get("round_robin_gradients"))


@pytest.mark.parametrize("case", CASES, ids=named)
def test_every_record_has_the_right_checksum(case: Path, tmp_path: Path) -> None:
    reshard(read(case / "checkpoint"), tmp_path / "out", 3)
    for file in tmp_path.rglob("*_states.pt"):
        with zipfile.ZipFile(file) as archive:
            assert archive.testzip() is None, file


def test_what_lies_around_the_tag_comes_along(tmp_path: Path) -> None:
    saved = DEEPSPEED / "hf-trainer-z2-bf16-w2" / "checkpoint" / "checkpoint-2"
    target = lay_out(read(saved), tmp_path / "out", world_size=3)
    out = write(read(saved), target)
    kept = {"latest", "trainer_state.json", "config.json", "scheduler.pt", "model.safetensors"}
    assert kept <= {path.name for path in out.iterdir()}
    for name in kept:
        assert (out / name).read_bytes() == (saved / name).read_bytes()
    assert not list(out.glob("rng_state_*.pth"))
    assert "rng_state_0.pth, rng_state_1.pth hold the random number state" in target.notes[0]


def test_latest_names_the_tag_that_was_taken(tmp_path: Path) -> None:
    source = read(DEEPSPEED / "z2-bf16-w2-tags" / "checkpoint", tag="global_step1")
    out = write(source, lay_out(source, tmp_path / "out", world_size=3))
    assert (out / "latest").read_text() == "global_step1"
    assert sorted(path.name for path in out.iterdir()) == ["global_step1", "latest"]


def test_a_tag_directory_alone_takes_nothing_of_its_neighbours(tmp_path: Path) -> None:
    tag = tmp_path / "moved"
    shutil.copytree(DEEPSPEED / "z2-fp32-w2" / "checkpoint" / "global_step2", tag)
    (tmp_path / "unrelated.txt").write_text("x")
    source = read(tag)
    out = write(source, lay_out(source, tmp_path / "out", world_size=1))
    assert sorted(path.name for path in out.iterdir()) == ["latest", "moved"]


def test_what_cannot_be_laid_out_is_refused_by_name(tmp_path: Path) -> None:
    refused = {
        "z0-bf16-w2": "no ZeRO partitions",
        "pipeline-z1-fp32-w4": "pipeline or tensor-parallel",
        "tensor-parallel-z1-bf16-w4": "pipeline or tensor-parallel",
        "experts-z2-bf16-w2": "experts",
        "z2-fp32-w2-elastic": "elastic",
    }
    for name, why in refused.items():
        with pytest.raises(Unsupported, match=why):
            lay_out(read(DEEPSPEED / name / "checkpoint"), tmp_path / "out", world_size=3)
    with pytest.raises(BadRequest, match="at least 1 rank, not 0"):
        lay_out(read(DEEPSPEED / "z2-fp32-w2" / "checkpoint"), tmp_path / "out", world_size=0)
