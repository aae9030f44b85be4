"""A run of Megatron-Core goes on under torch's FSDP2 with its optimizer, and with the losses of its
own next steps.

The run had two pipeline stages of two tensor-parallel ranks, and its distributed optimizer saved
`fully_reshardable`. Sums are made in another order, so losses are compared within TOLERANCE.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden_files import GOLDEN
from zerotools.ops.conversions import convert
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.weights.convert_layout import MapRequest

pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

CASE = GOLDEN / "megatron-core-0.16.1" / "hub-continued"
CLIP, TOLERANCE = 1.0, 1e-6


@pytest.fixture
def one_rank() -> Iterator[None]:
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_fsdp2_goes_on_with_the_losses_of_megatron(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import AutoConfig, AutoModelForCausalLM

    from tests.golden.megatron_runs.hub_cases import windows

    place = tmp_path / "for-fsdp"
    conversion = convert.prepare_convert(
        CASE / "checkpoint", place, "dcp", {}, config_dir=CASE, mapping=MapRequest(to="hf")
    )
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)

    config = AutoConfig.from_pretrained(CASE)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    mesh = init_device_mesh("cpu", (1,))
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    matrices = [each for each in model.parameters() if each.dim() >= 2]
    others = [each for each in model.parameters() if each.dim() < 2]
    # Options are those of the checkpoint: these are wrong on purpose.
    optimizer = torch.optim.AdamW([{"params": matrices}, {"params": others}], lr=0.7)
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=str(place))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)

    expected = json.loads((CASE / "continued.json").read_text())["losses"]
    batch = windows()
    losses = []
    for _ in expected:
        logits = model(input_ids=batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses == pytest.approx(expected, rel=TOLERANCE)
    assert losses[-1] < losses[0] - 0.4
