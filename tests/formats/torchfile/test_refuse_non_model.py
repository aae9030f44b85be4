"""State of one rank, known by what is in it, whatever the file is called."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.formats.torchfile.saving import Saved
from tests.golden_files import DEEPSPEED, GOLDEN, TORCH
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.torchzip.pt_file import TorchFile

MEGATRON = GOLDEN / "megatron-core-0.16.1"
W = np.arange(6, dtype=np.float32)
ZERO = "one rank's partition of the optimizer state of DeepSpeed's ZeRO"


def _renamed(tmp_path: Path, case: Path, pattern: str) -> Path:
    copy = tmp_path / "optimizer.00.pt"
    shutil.copyfile(next((case / "checkpoint").rglob(pattern)), copy)
    return copy


@pytest.mark.parametrize(
    ("case", "pattern", "said"),
    [
        (DEEPSPEED / "z2-bf16-w2", "*rank_0*optim_states.pt", ZERO),
        (DEEPSPEED / "z3-bf16-w2", "*rank_0*optim_states.pt", ZERO),
        (DEEPSPEED / "bf16-optimizer-w2", "*rank_0*optim_states.pt", ZERO),
        (DEEPSPEED / "z3-bf16-w2", "*rank_0*model_states.pt", "10 weights of 11 are empty, such"),
        (
            DEEPSPEED / "tensor-parallel-z1-bf16-w4",
            "mp_rank_00_model_states.pt",
            "one rank's part of a model divided over 2 model-parallel ranks",
        ),
        (MEGATRON / "legacy-tp2-pp2", "model_optim_rng.pt", "divided over TP 2, PP 2"),
        (
            MEGATRON / "legacy-tp2-dp2-distributed",
            "distrib_optim.pt",
            "optimizer state of Megatron's distributed optimizer",
        ),
    ],
)
def test_a_rank_s_state_under_another_name(
    tmp_path: Path, case: Path, pattern: str, said: str
) -> None:
    with pytest.raises(Unsupported, match=said):
        formats.read(_renamed(tmp_path, case, pattern))


def test_the_state_alone_and_wrapped(tmp_path: Path) -> None:
    source = next((DEEPSPEED / "z2-bf16-w2" / "checkpoint").rglob("*rank_0*optim_states.pt"))
    state = TorchFile.open(source.parent, source.name).tree["optimizer_state_dict"]
    flat = {"partition_count": [2], "single_partition_of_fp32_groups": []}
    assert flat.keys() <= state.keys()
    made = Saved()
    zero = {**flat, "base_optimizer_state": {"exp_avg": made.tensor(W)}}
    for tree in (zero, {"optimizer": zero, "step": 3}, {"a": {"b": zero}}):
        made.write(tmp_path / "state.pt", tree)
        with pytest.raises(Unsupported, match=ZERO):
            formats.read(tmp_path / "state.pt")


def test_weights_beside_such_a_state_are_the_model(tmp_path: Path) -> None:
    made = Saved()
    zero = {"partition_count": [2], "base_optimizer_state": {"exp_avg": made.tensor(W)}}
    for tree in (
        {"model": {"w": made.tensor(W)}, "optimizer": zero},
        {"w": made.tensor(W), "optimizer": zero},
    ):
        found = formats.read(made.write(tmp_path / "both.pt", tree))
        assert [key for key in found.tensors if key.role == "param"] == [Key("w", "param")]


def test_placeholders_without_deepspeed_s_own_keys(tmp_path: Path) -> None:
    """`torch.save(model.state_dict())` under ZeRO-3."""
    made = Saved()
    tree = {"a": made.tensor(W[:0]), "b": made.tensor(W[:0])}
    with pytest.raises(Unsupported, match="2 weights of 2 are empty, such as a: they are place"):
        formats.read(made.write(tmp_path / "model.pt", tree))


def _generators(made: Saved) -> list[Any]:
    state = made.tensor(np.zeros(5056, np.uint8))
    return [{"rng": state}, {"cpu": state, "cuda": [made.tensor(np.zeros(16, np.uint8))]}]


def test_states_of_generators_are_no_model(tmp_path: Path) -> None:
    for tree in _generators(made := Saved()):
        with pytest.raises(BadFile, match="no tensor that could be a parameter"):
            formats.read(made.write(tmp_path / "rng_state_0.pth", tree))


def test_rank_files_of_names_of_their_own(tmp_path: Path) -> None:
    """A directory, or any of its files, means the files of all ranks."""
    source = TORCH / "fsdp2-verl-w3"
    whole = formats.read(source / "checkpoint")
    for rank in range(3):
        for kind, name in (("model", "trainer"), ("optim", "optimizer-")):
            file = source / "checkpoint" / f"{kind}_world_size_3_rank_{rank}.pt"
            shutil.copyfile(file, tmp_path / f"{name}{'' if name[-1] == '-' else '_'}{rank}.pt")
    for path in (tmp_path, tmp_path / "trainer_1.pt"):
        found = formats.read(path)
        assert (found.origin.world_size, list(found.problems)) == (3, [])
        assert found.tensors.keys() == whole.tensors.keys()
    (tmp_path / "trainer_1.pt").unlink()
    problem = formats.read(tmp_path).problems[0]
    assert "trainer_1.pt is missing; the run had 3 ranks" in problem.message
