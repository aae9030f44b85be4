"""What DCPs of real programs say of the run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.golden_files import FOREIGN, JOB, TORCH
from zerotools import formats
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import BFLOAT16, FLOAT32
from zerotools.core.training_state import Scalar

ADAMW = {
    "lr": 0.01,
    "betas": (0.9, 0.999),
    "eps": 1e-08,
    "weight_decay": 0.01,
    "amsgrad": False,
    "maximize": False,
    "foreach": None,
    "capturable": False,
    "differentiable": False,
    "fused": None,
    "decoupled_weight_decay": True,
}


def _golden(case: str) -> Checkpoint:
    return formats.read(TORCH / case / "checkpoint")


@pytest.mark.parametrize(
    ("case", "names", "changed"),
    [
        ("fsdp2-dcp-w3", "embed.weight layer.weight layer.bias cube.weight norm.weight", True),
        ("fsdp1-dcp-w2", "embed.weight layer.weight layer.bias cube.weight norm.weight", False),
        (
            "fsdp1-dcp-w3-flat",
            "cube.weight norm.weight embed.weight layer.weight layer.bias",
            False,
        ),
        ("fsdp2-torchtitan-w2", "embed.weight norm.weight", False),
        ("fsdp2-tp-dcp-w4", "0.weight 1.weight 1.bias", False),
    ],
)
def test_param_groups_of_every_layout(case: str, names: str, changed: bool) -> None:
    """FSDP1's own order is that of its flat parameters: the optimizer had them so."""
    state = formats.training_of(_golden(case))
    (group,) = state.groups
    assert group.params == tuple(names.split())
    assert group.options == (ADAMW | {"betas": (0.9, 0.95)} if changed else ADAMW)
    assert state.optimizer == "AdamW"


def test_a_tied_weight_is_not_called_frozen() -> None:
    """torch saves it under both names, and the optimizer has one of them."""
    found = formats.read(FOREIGN / "fsdp2-dcp" / "checkpoint")
    grouped = {name for group in formats.training_of(found).groups for name in group.params}
    assert "lm_head.weight" not in grouped
    assert not formats.training_of(found).knows_frozen


def test_a_buffer_whose_file_is_lost_is_not_called_frozen(tmp_path: Path) -> None:
    shutil.copytree(TORCH / "fsdp2-dcp-w3" / "checkpoint", tmp_path / "lost")
    assert formats.training_of(formats.read(tmp_path / "lost")).knows_frozen
    (tmp_path / "lost" / "pytorch_model_fsdp_0" / "__1_0.distcp").unlink()
    assert not formats.training_of(formats.read(tmp_path / "lost")).knows_frozen


def test_the_numbers_are_tensors_of_their_type() -> None:
    checkpoint = _golden("fsdp2-dcp-w3")
    scalars = formats.training_of(checkpoint).scalars
    assert set(scalars.values()) == {Scalar(2.0, FLOAT32)}
    assert scalars.keys() == {key for key in checkpoint.tensors if key.role == "step"}


def test_torchtitans_counters_and_schedule_and_the_rest() -> None:
    state = formats.training_of(_golden("fsdp2-torchtitan-w2"))
    assert (state.steps, state.lr_scheduler) == (4, {"last_epoch": 4})
    assert dict(state.client) == {f"dataloader.dp_rank_{rank}": b"position" for rank in (0, 1)}


def test_a_job_has_its_record() -> None:
    state = formats.training_of(formats.read(JOB))
    assert (state.optimizer, state.precision) == ("AdamW", BFLOAT16)
    assert (state.steps, state.samples) == (3, 36)
    decayed, others = state.groups
    assert decayed.options == {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-08, "weight_decay": 0.1}
    assert others.options["weight_decay"] == 0.0
    assert state.scalars[Key(others.params[0], "step")] == Scalar(3.0, FLOAT32)
    assert state.client["seed"] == 7


def test_fp32_weights_do_not_say_in_which_type_the_model_computes() -> None:
    assert formats.training_of(_golden("fsdp2-dcp-w3")).precision is None


def test_what_is_saved_whole_is_a_buffer_only_where_trained_weights_are_cut() -> None:
    cut = _golden("fsdp2-torchtitan-w2")
    found = formats.training_of(cut)
    assert (found.buffers, found.knows_frozen) == ({"norm.seen"}, True)
    whole = {
        key: replace(
            tensor, chunks=[replace(next(iter(tensor.chunks)), box=Box.whole(tensor.shape))]
        )
        for key, tensor in cut.tensors.items()
    }
    found = formats.training_of(replace(cut, tensors=whole))
    assert (found.buffers, found.knows_frozen) == (frozenset(), False)
