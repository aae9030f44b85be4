"""What is to hold whatever the mesh of a run's ranks: memory is what was predicted, and every
command reads its checkpoints, as does torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.daemon.trainer.several import Runs
from zerotools.core.training_memory_layout import DEVICE, GRADIENTS, MASTERS, MOMENTS, WEIGHTS
from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.elastic_world_sizes import at_size
from zerotools.ops.estimate.state_memory import torch_engine_state

ADAPTER_SCALE = 2.0
"""The job file's default."""


def check_memory(runs: Runs, name: str, near: float = 0.01) -> None:
    """The most that a rank holds at the end of run `name` is what is predicted: of each sort of
    bytes in each place, within 1 %, or to the byte if `near` is 0. Then every rank holds as many
    bytes of weights, also one of fewer rows: FSDP pads them, in memory that is counted. Gradients
    that were summed whole are gone by then."""
    from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config
    from zerotoolsd.trainer.model.predict_state_memory import parameters_of

    live = runs.report[name]["end"]["live"]
    spec = at_size(job_from_dict(runs.jobs[name], source="job"), len(live))
    layout = memory_layout_of(spec)
    drawn = make_meta_model(read_config(spec.model), spec.lora)
    predicted = torch_engine_state(parameters_of(drawn, tensor_ranks=layout.tensor_ranks), layout)
    if not layout.has_masters:
        predicted = {key: size for key, size in predicted.items() if key[1] != GRADIENTS}
    most = {
        (place, sort): max(rank.get(f"{place} {sort}", 0) for rank in live)
        for place in (DEVICE, "host", "disk")
        for sort in (WEIGHTS, MASTERS, MOMENTS, GRADIENTS)
    }
    if spec.train.accumulate == "local":
        predicted, most = (
            {key: size for key, size in sizes.items() if key[1] != GRADIENTS}
            for sizes in (predicted, most)
        )
    found = {key: size for key, size in most.items() if size}
    assert found.keys() == predicted.keys(), name
    for key, size in predicted.items():
        assert found[key] == pytest.approx(size, rel=near), (name, key)
    if not near and not copies_fewer_rows():
        weights = {rank[f"{layout.params_tier} weights"] for rank in live}
        assert weights == {predicted[layout.params_tier, WEIGHTS]}, name


def copies_fewer_rows() -> bool:
    """Whether FSDP of this torch copies the rows of a rank that has fewer to memory of its own, as
    that of 2.8 does: it is not in the ledger."""
    import inspect

    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    return "same_local_tensor" not in inspect.getsource(FSDPParam.reset_sharded_param)


def told(*words: str) -> str:
    """What a command prints, which succeeds."""
    from click.testing import CliRunner

    from zerotools.cli.main import build

    result = CliRunner().invoke(build(), words)
    assert result.exit_code == 0, result.output
    return result.stdout


def check_commands(saved: Path, ranks: int, scratch: Path) -> None:
    """The checkpoint of so many `ranks` is inspected, verified, resharded and consolidated, and
    torch reads in it what the commands write."""
    import torch
    from safetensors.torch import load_file

    from tests.daemon.trainer.tensors import digest, load

    told("verify", str(saved))
    assert json.loads(told("inspect", "--json", str(saved)))["world_size"] == ranks
    told("reshard", str(saved), str(scratch / "other"), "--world-size", str(ranks + 1))
    assert digest(scratch / "other") == digest(saved)
    told("consolidate", str(saved), str(scratch / "whole"))
    by_torch, written = load(saved), load_file(scratch / "whole" / "model.safetensors")
    assert written
    for name, tensor in written.items():
        own, layer = by_torch.get(f"model.{name}"), f"model.{name.removesuffix('.weight')}"
        if own is not None:
            assert torch.equal(tensor, own.to(tensor.dtype)), name
            continue
        base, *halves = (
            by_torch[f"{layer}.{part}.weight"].float()
            for part in ("base_layer", "lora_B.default", "lora_A.default")
        )
        summed = base + ADAPTER_SCALE * torch.mm(*halves)
        assert torch.allclose(tensor.float(), summed, rtol=2**-8, atol=1e-6), name
