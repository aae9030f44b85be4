"""What torch files of real programs say of the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.formats.torchfile.saving import Saved
from tests.golden_files import TORCH
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.dtypes import BFLOAT16, FLOAT32
from zerotools.core.training_state import Scalar


def test_numbered_parameters_get_the_names_of_the_weights() -> None:
    state = formats.training_of(formats.read(TORCH / "fsdp2-verl-w3" / "checkpoint"))
    (group,) = state.groups
    names = ("embed.weight", "layer.weight", "layer.bias", "cube.weight", "norm.weight")
    assert group.params == names
    assert group.options["betas"] == (0.9, 0.95)
    assert state.scalars == {Key(name, "step"): Scalar(2.0, FLOAT32) for name in names}
    assert (state.optimizer, state.precision) == ("AdamW", None)


def test_where_nothing_says_which_is_which_numbers_stay() -> None:
    path = TORCH / "training-file" / "checkpoint" / "checkpoint.pt"
    state = formats.training_of(formats.read(path))
    first, second = state.groups
    assert first.params == tuple(f"optimizer.state.{number}" for number in range(4))
    assert (first.options["weight_decay"], second.options["lr"]) == (0.1, 0.02)
    assert state.client == {"epoch": 1}


def test_weights_alone_say_their_type() -> None:
    state = formats.training_of(formats.read(TORCH / "fsdp2-hf-sharded-w2" / "checkpoint"))
    assert (state.precision, state.groups, state.scalars) == (BFLOAT16, (), {})


def test_numbers_that_are_no_tensors(tmp_path: Path) -> None:
    """torch before 1.12 counted steps in ints."""
    saved = Saved()
    weights = saved.tensor(np.zeros((2, 3), np.float32))
    moment = saved.tensor(np.zeros((2, 3), np.float32))
    optimizer = {
        "state": {0: {"step": 7, "exp_avg": moment}},
        "param_groups": [{"lr": 0.5, "params": [0]}],
    }
    saved.write(tmp_path / "a.pt", {"model": {"w": weights}, "optimizer": optimizer})
    state = formats.training_of(formats.read(tmp_path / "a.pt"))
    assert state.scalars == {Key("w", "step"): Scalar(7)}
    assert (state.groups[0].params, dict(state.groups[0].options)) == (("w",), {"lr": 0.5})
