"""What the state of a rank will take, before any of it is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.tables.deepspeed_config import offloaded_to
from zerotools.jobs.tables.spec import JobSpec
from zerotools.ops.estimate import (
    DEVICE,
    DISK,
    HOST,
    Parameter,
    Setup,
    bytes_at,
    gathered,
    nvme_offload_state,
    torch_engine_state,
)
from zerotoolsd.trainer.model.meta_model import MetaModel

MIB = 1 << 20


def parameters_of(blueprint: MetaModel) -> list[Parameter]:
    """The parameters, each with the block that it is gathered with; tied ones once."""
    found = []
    for name, parameter in blueprint.model.named_parameters():
        block = next((b for b in blueprint.blocks if name.startswith(f"{b}.")), None)
        found.append(Parameter(tuple(parameter.shape), parameter.requires_grad, block))
    return found


def setup_of(spec: JobSpec) -> Setup:
    """How a run is laid out, in the job file's words; what DeepSpeed offloads, its config says."""
    optimizer, params = offloaded_to(spec)
    return Setup(
        stage=spec.zero.stage,
        ranks=spec.world_size,
        precision=spec.train.precision,
        optimizer=spec.train.optimizer,
        has_momentum=spec.train.momentum > 0,
        offload_optimizer=optimizer,
        offload_params=params,
        shard_size=spec.zero.shard_size,
    )


@dataclass(frozen=True)
class Prediction:
    """Bytes of a rank's state: on the device between steps, of weights that are gathered there in
    the passes, in the host's memory and on disk."""

    device: int
    gathered: int
    host: int
    disk: int
    on_gpu: bool = True

    def __str__(self) -> str:
        parts = [f"{_mib(self.device)} on {'the GPU' if self.on_gpu else 'the device'}"]
        if self.gathered:
            parts[0] += f" and {_mib(self.gathered)} of gathered weights"
        if self.host:
            parts.append(f"{_mib(self.host)} in the host's memory")
        if self.disk:
            parts.append(f"{_mib(self.disk)} on disk")
        return f"state of a rank: {', '.join(parts)}; activations are not estimated"


def predict(spec: JobSpec, blueprint: MetaModel) -> Prediction:
    """What `spec` will make of the model. Engine `deepspeed` is taken at the textbook's word, but
    for its files on disk."""
    parameters, setup = parameters_of(blueprint), setup_of(spec)
    ours = spec.engine == "torch"
    state = torch_engine_state(parameters, setup) if ours else nvme_offload_state(parameters, setup)
    return Prediction(
        bytes_at(state, DEVICE),
        gathered(parameters, setup) if ours else 0,
        bytes_at(state, HOST),
        bytes_at(state, DISK),
        on_gpu=spec.device == "cuda",
    )


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f} MiB"
