"""Builds the model and the optimizer of engine `torch`: their memory, sharding and initial
values.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from zerotools.core.errors import BadRequest
from zerotools.core.training_memory_layout import DISK, MemoryLayout
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.ops.estimate.state_memory import optimizer_state_of_all_ranks
from zerotools.runs.training_record import JobRecord
from zerotoolsd.supervisor.transient_os_errors import is_transient
from zerotoolsd.trainer.allocate_tensors import TORCH_DTYPES, make_memory
from zerotoolsd.trainer.engine.chunked_loss import install_chunked_loss, loss_size_of
from zerotoolsd.trainer.engine.conditional_layers import SeparateExperts, separate_experts
from zerotoolsd.trainer.engine.load_adapter import fill_adapter, read_adapter
from zerotoolsd.trainer.engine.router_balance import add_router_loss, move_router_bias
from zerotoolsd.trainer.engine.training_loss import switch_off_dropout
from zerotoolsd.trainer.engine_torch.master_weights import MasterWeights
from zerotoolsd.trainer.engine_torch.optimizer import make_optimizer
from zerotoolsd.trainer.engine_torch.reduce_and_update import (
    InPlaceUpdate,
    PartitionedUpdate,
    RowPartition,
    UpdatePath,
)
from zerotoolsd.trainer.engine_torch.training_tensors import LiveState
from zerotoolsd.trainer.model.add_lora_adapters import check_frozen_type
from zerotoolsd.trainer.model.fill_shards import (
    load_packed,
    load_weights,
    persistent_buffers,
    values_by_rule,
)
from zerotoolsd.trainer.model.initialise_from_seed import initialise_weights
from zerotoolsd.trainer.model.keep_fp32 import kept_in_fp32
from zerotoolsd.trainer.model.match_pretrained import Pretrained
from zerotoolsd.trainer.model.meta_model import MetaModel, checkpoint_activations
from zerotoolsd.trainer.model.nf4_linear import check_kernels
from zerotoolsd.trainer.model.optimizer_groups import decayed_names, muon_names
from zerotoolsd.trainer.model.predict_state_memory import parameters_of
from zerotoolsd.trainer.model.sharding import REPLICATE, make_mesh, shard_model
from zerotoolsd.trainer.rank.process_group import START_TIMEOUT, WorldGroup
from zerotoolsd.trainer.rank.rank_errors import MachineNotReady
from zerotoolsd.trainer.reporting.reporter import Reporter
from zerotoolsd.trainer.sequence_parallel.split_batch import split_sequences


def build_live_state(
    spec: JobSpec,
    layout: MemoryLayout,
    meta_model: MetaModel,
    group: WorldGroup,
    reporter: Reporter,
    record: JobRecord | None,
    pretrained: Pretrained | None,
) -> LiveState:
    """Build the model and the optimizer, and fill this rank's shards with initial values.

    The values come from `pretrained`, or from the seed if `pretrained` is None. If `record` is
    given, the weights are left unset, because the checkpoint with this record will fill them.

    Raises:
        ZerotoolsError: the model cannot be initialised, its weights cannot be read, the disk is too
            small for the state, or torch cannot gather weights of these dtypes.
    """
    if spec.train.activation_checkpointing:
        checkpoint_activations(meta_model.model)
    check_frozen_type(layout)
    if layout.packs_frozen:
        check_kernels(group.device)
    if layout.state_tier == DISK:
        check_disk_space(meta_model, layout, Path(spec.offload.path or ""), group)
    memory = make_memory(group.device, layout.state_tier, spec.offload)
    kept = kept_in_fp32(meta_model.model, spec.train)
    model = shard_model(meta_model, layout, memory, compiled=spec.train.compile, kept=kept)
    _reduce_all_experts(model)
    group.wait_at_most(START_TIMEOUT)  # in the groups of its meshes, too
    parameters = dict(model.named_parameters())
    masters = MasterWeights(parameters, memory, layout) if layout.has_masters else None
    update_path: UpdatePath = masters or _update_path(parameters, layout, group.device)
    decayed = decayed_names(meta_model.model, spec.train.decay_by, record)
    matrices = muon_names(meta_model.model)
    optimizer = make_optimizer(update_path, spec.train, memory.state, decayed, matrices)
    mesh = None if layout.is_sharded else make_mesh(group.device, layout)
    live = LiveState(model, layout, optimizer, memory, SeparateExperts(model), masters, mesh)
    _fill(live, spec, meta_model, pretrained, resumes=record is not None)
    model.train()
    if spec.data.preferences:
        switch_off_dropout(model)
    add_router_loss(spec, model)
    move_router_bias(spec, model)
    split_sequences(model, group, spec.zero.sequence_ranks)
    install_chunked_loss(
        model, loss_size_of(spec, meta_model.config), lambda text: reporter.log_line(text)
    )
    return live


def _reduce_all_experts(model: Any) -> None:
    """Make the ranks reduce the gradients of all separate experts.

    If no token of a rank uses an expert, the rank contributes zeros for this expert.
    `check_same_layers_on_ranks` refuses several ranks with a torch that does not support this.
    """
    if separate_experts(model) and hasattr(model, "set_reduce_scatter_unused_params"):
        model.set_reduce_scatter_unused_params(True)


def _update_path(
    parameters: Mapping[str, torch.nn.Parameter], layout: MemoryLayout, device: torch.device
) -> UpdatePath:
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    if not trained:
        raise BadRequest("the model has no trainable parameters")
    if layout.stage != 1 or not layout.is_sharded:
        return InPlaceUpdate(trained, device)
    mesh = next(iter(trained.values())).device_mesh[REPLICATE]
    return PartitionedUpdate(trained, RowPartition(trained, mesh))


def _fill(
    live: LiveState,
    spec: JobSpec,
    meta_model: MetaModel,
    pretrained: Pretrained | None,
    *,
    resumes: bool,
) -> None:
    buffers = dict(live.model.named_buffers())
    by_rule = values_by_rule(live.model, pretrained, resumes=resumes)
    parameters = {name: p for name, p in live.parameters.items() if name in by_rule}
    loaded = buffers.keys() - by_rule
    initialise_weights(parameters, buffers, meta_model, spec.seed, live.memory.host, loaded)
    if pretrained is not None:
        targets = {**live.parameters, **persistent_buffers(live.model)}
        load_weights(targets, meta_model.aliases, pretrained)
        device, dtype = live.memory.device, TORCH_DTYPES[live.layout.precision]
        load_packed(live.model, meta_model.aliases, pretrained, device, dtype)
    if resumes:
        return
    if spec.lora.path is not None:
        fill_adapter(read_adapter(spec.lora, meta_model.model), live.parameters)
    live.copy_to_model()


GIB = 1 << 30


def check_disk_space(
    meta_model: MetaModel,
    layout: MemoryLayout,
    path: Path,
    group: WorldGroup,
    usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage,
) -> None:
    """Check that the disk has enough space for `offload.optimizer = "disk"`, before anything is
    built.

    The first rank of each node checks the disk of its node, for the state of the node's ranks.
    `usage` returns the bytes of the disk at a path: in all, used and free.

    Raises:
        BadRequest: on one of the nodes, `path` cannot be used, or the disk is too small for the
            optimizer's state. It is raised on every rank.
        MachineNotReady: the disk is large enough, but too full, or has a transient error.
    """

    def check_space() -> None:
        whole = optimizer_state_of_all_ranks(parameters_of(meta_model), layout)
        need = whole * group.rank.node_ranks // group.rank.world_size
        try:
            path.mkdir(parents=True, exist_ok=True)
            total, _, free = usage(path)
        except OSError as error:
            kind = MachineNotReady if is_transient(error) else BadRequest
            raise kind(f"offload.path: {path} cannot be used: {error.strerror}") from None
        if free < need:
            kind = MachineNotReady if total >= need else BadRequest
            raise kind(
                f"offload.path: the optimizer's state takes {need / GIB:.2f} GiB, but {path} has "
                f"only {free / GIB:.2f} GiB free: free some space, or name a directory on another "
                "disk"
            )

    group.decided_by_node(check_space)
