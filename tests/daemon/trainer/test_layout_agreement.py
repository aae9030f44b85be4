"""One memory layout: estimate, prediction, engine and disk check follow the same value."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA, job
from zerotools.core.errors import BadRequest
from zerotools.core.training_memory_layout import (
    DEVICE,
    DISK,
    GRADIENTS,
    HOST,
    MASTERS,
    MOMENTS,
    WEIGHTS,
)
from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.ops.estimate.state_memory import State, bytes_at, torch_engine_state

pytestmark = pytest.mark.torch

CHANGES: list[dict[str, Any]] = [
    {},
    {"precision": "bf16"},
    {"stage": 1, "precision": "bf16"},
    {"stage": 0, "precision": "fp16", "offload_optimizer": "cpu"},
    {"offload_optimizer": "disk"},
    {"offload_params": "cpu"},
    {"offload_params": "cpu", "offload_optimizer": "disk"},
]


@pytest.fixture
def group() -> Iterator[Any]:
    """A process group of this process."""
    import torch
    import torch.distributed as dist

    from zerotoolsd.trainer.rank.process_group import WorldGroup
    from zerotoolsd.trainer.rank.rank_settings import Rank

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield WorldGroup(Rank(0, 0, 1), torch.device("cpu"), dist.new_group(backend="gloo"))
    dist.destroy_process_group()


# The newest torch has another name for it, which the oldest that we support does not have.
@pytest.mark.filterwarnings("ignore:.*all_gather_into_tensor.*:FutureWarning")
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_change_of_the_layout_changes_all_four_alike(
    change: dict[str, Any], group: Any, text: Path, tmp_path: Path
) -> None:
    from zerotoolsd.trainer.engine_torch.build_model_and_optimizer import (
        build_live_state,
        check_disk_space,
    )
    from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config
    from zerotoolsd.trainer.model.predict_state_memory import parameters_of, predict_state_memory
    from zerotoolsd.trainer.rank.notify_supervisor import Notifier
    from zerotoolsd.trainer.rank.rank_errors import MachineNotReady
    from zerotoolsd.trainer.reporting.reporter import Reporter

    offload = {"optimizer": "disk", "path": str(tmp_path)}  # the job's own; the layout decides
    spec = job_from_dict(job(text, model={"config": TINY_LLAMA}, offload=offload), source="job")
    layout = replace(memory_layout_of(spec), **{"offload_optimizer": "none", **change})
    model = make_meta_model(read_config(spec.model))
    state = torch_engine_state(parameters_of(model), layout)

    prediction = predict_state_memory(model, layout, on_gpu=False)
    found = (prediction.device, prediction.host, prediction.disk)
    assert found == tuple(bytes_at(state, tier) for tier in (DEVICE, HOST, DISK))

    reporter = Reporter(group.rank, Notifier(None, 0), steps=1)
    live = build_live_state(spec, layout, model, group, reporter, record=None, pretrained=None)
    sorts = (WEIGHTS, MASTERS, MOMENTS, GRADIENTS)
    held = {key: size for key, size in live.memory.ledger.live.items() if size and key[1] in sorts}
    # Without masters, the gradients are those that the backward pass makes.
    expected = {k: v for k, v in state.items() if layout.has_masters or k[1] != GRADIENTS}
    assert held == expected

    need = optimizer_state(state)
    check_disk_space(model, layout, tmp_path, group, lambda path: (need, 0, need))
    said = r"offload\.path: the optimizer's state takes"
    with pytest.raises(BadRequest, match=said):
        check_disk_space(model, layout, tmp_path, group, lambda path: (need - 1, 0, need - 1))
    with pytest.raises(MachineNotReady, match=said):  # another job may give it back
        check_disk_space(model, layout, tmp_path, group, lambda path: (need, 1, need - 1))


def test_each_node_checks_its_disk_for_the_state_of_its_ranks(text: Path, tmp_path: Path) -> None:
    import torch

    from zerotools.ops.estimate.state_memory import optimizer_state_of_all_ranks
    from zerotoolsd.trainer.engine_torch.build_model_and_optimizer import check_disk_space
    from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config
    from zerotoolsd.trainer.model.predict_state_memory import parameters_of
    from zerotoolsd.trainer.rank.process_group import WorldGroup
    from zerotoolsd.trainer.rank.rank_errors import MachineNotReady
    from zerotoolsd.trainer.rank.rank_settings import Rank

    class Gathered(WorldGroup):
        """The first rank of the second of two nodes; the other ranks answer as this one does."""

        def gathered(self, value: Any) -> list[Any]:
            return [value] * self.rank.world_size

    spec = job_from_dict(job(text, model={"config": TINY_LLAMA}), source="job")
    layout = replace(memory_layout_of(spec), world_size=8, offload_optimizer="disk")
    model = make_meta_model(read_config(spec.model))
    group = Gathered(Rank(4, 0, 8, node=1, nodes=2), torch.device("cpu"), control=None)
    half = optimizer_state_of_all_ranks(parameters_of(model), layout) // 2
    check_disk_space(model, layout, tmp_path, group, lambda path: (half, 0, half))
    with pytest.raises(MachineNotReady, match=r"node 0: offload\.path: the optimizer's state"):
        check_disk_space(model, layout, tmp_path, group, lambda path: (half, 1, half - 1))
    with pytest.raises(MachineNotReady, match=r"spill cannot be used: Input/output error"):
        check_disk_space(model, layout, tmp_path / "spill", group, broken)


def broken(path: Path) -> tuple[int, int, int]:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def optimizer_state(state: State) -> int:
    return sum(size for (_, sort), size in state.items() if sort in (MASTERS, MOMENTS))
