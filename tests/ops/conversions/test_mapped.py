"""Runs that change framework with their optimizer: `convert --map-to` of a real AdamW's state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.maps import oracles
from tests.maps.models import made
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.conversions.convert import prepare_convert
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.weights.convert_layout import MapRequest

pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


def trained(name: str, folder: Path) -> Any:
    """A tiny model after one step of AdamW, its state in `folder`/dcp as FSDP2 saves it."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = made(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.arange(12)[None]
    model(tokens, labels=tokens).loss.backward()
    for parameter in model.parameters():  # an expert that no token went to
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    model.config.save_pretrained(folder)
    state = {"model": model.state_dict(), "optim": get_optimizer_state_dict(model, optimizer)}
    dcp.save(state, checkpoint_id=str(folder / "dcp"))
    return model


def convert(source: Path, out: Path, to: str, config: Path, **options: Any) -> None:
    conversion = prepare_convert(
        source, out, "dcp", options, config_dir=config, mapping=MapRequest(to=to)
    )
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)


def of_role(path: Path, role: str) -> Mapping[str, np.ndarray]:
    checkpoint = formats.read(path)
    types = {key: each.dtype for key, each in checkpoint.tensors.items() if key.role == role}
    return {key.name: array for key, array in load_tensors(checkpoint, types).items()}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_moments_have_the_layout_of_the_weights_and_come_back(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    model = trained("llama", tmp_path)
    convert(tmp_path / "dcp", tmp_path / "there", "titan", tmp_path, style="torchtitan")
    for role in ("param", "exp_avg", "exp_avg_sq"):
        wanted = oracles.meta(of_role(tmp_path / "dcp", role), model.config)
        found = of_role(tmp_path / "there", role)
        assert found.keys() == wanted.keys()
        assert all(found[n].tobytes() == wanted[n].tobytes() for n in wanted)
    training = formats.training_of(formats.read(tmp_path / "there"))
    assert {n for group in training.groups for n in group.params} == set(wanted)
    assert training.scalars[Key("layers.1.attention.wq.weight", "step")].value == 1
    assert dcp.FileSystemReader(tmp_path / "there").read_metadata()
    convert(tmp_path / "there", tmp_path / "back", "hf", tmp_path)
    assert_equal(tmp_path / "dcp", tmp_path / "back")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_experts_of_megatron_become_those_of_the_live_model(tmp_path: Path) -> None:
    model = trained("mixtral", tmp_path)
    convert(tmp_path / "dcp", tmp_path / "megatron", "megatron", tmp_path)
    moments = of_role(tmp_path / "megatron", "exp_avg")
    live = of_role(tmp_path / "dcp", "exp_avg")
    fused = np.stack([live[f"model.layers.{n}.mlp.experts.gate_up_proj"] for n in range(2)])
    assert moments["decoder.layers.mlp.experts.experts.linear_fc1.weight"].tobytes() == (
        fused.tobytes()
    )
    convert(tmp_path / "megatron", tmp_path / "back", "hf-fused", tmp_path)
    assert_equal(tmp_path / "dcp", tmp_path / "back")
    weights = of_role(tmp_path / "back", "param")
    assert all(weights[n].tobytes() == v.numpy().tobytes() for n, v in model.state_dict().items())


def assert_equal(one: Path, other: Path) -> None:
    """Every tensor of every role, bit by bit."""
    roles = ("param", "exp_avg", "exp_avg_sq", "step")
    for role in roles:
        ours, theirs = of_role(one, role), of_role(other, role)
        assert ours
        assert ours.keys() == theirs.keys()
        assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)
