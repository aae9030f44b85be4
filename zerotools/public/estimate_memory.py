"""Predict the memory of a training."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, Unpack

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.stores.parse_url import path_of
from zerotools.jobs.jobfile.parse import given_of, job_from_tree
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.memory_estimates.job_workload import is_job_file, with_ranks, workload_of
from zerotools.jobs.memory_estimates.training_estimate import (
    Estimate,
    TrainingSettings,
    estimate_job,
    estimate_model,
    model_table_of,
)
from zerotools.ops.estimate.gpu_cards import MOST_GPU_MEMORY, Cards
from zerotools.ops.estimate.offload_table import OFFLOADS, STAGES
from zerotools.ops.estimate.parameter_shapes import read_shape
from zerotools.ops.estimate.rank_memory import Machine
from zerotools.public.command_options.declare_and_bind_options import (
    OUTPUT,
    RESOURCES,
    TRAINING,
    Gpus,
    Option,
    Size,
    StrPath,
    Words,
    bind_options,
    declared_options,
    takes_options,
)
from zerotools.sensors.foreign_gpu_memory import drawn_bytes
from zerotools.sensors.snapshot import Snapshot

MOST_HOST_MEMORY = 64 * 2**40
ASSUMED_GPU = 80 * 2**30
_LEAST_BYTES = 2**20
"""The smallest amount of memory that is taken as a number of bytes. A smaller number is taken as
GB.
"""


class MachineOptions(TypedDict, total=False):
    """Options that describe the machine that trains."""

    gpus: Annotated[
        Gpus | None,
        Option(
            group=RESOURCES,
            metavar="GPUS",
            help="GPUs, one rank each: 4, 4x24 (GB of each card), 8xH100, '2xRTX 4090' or 'this "
            "machine'.  [default: the job file's, else those of this machine]",
        ),
    ]
    gpu_memory: Annotated[
        Size | None,
        Option(
            group=RESOURCES,
            metavar="SIZE",
            help="Memory of one GPU.  [default: that of this machine]",
        ),
    ]
    host_memory: Annotated[
        Size | None,
        Option(
            group=RESOURCES,
            metavar="SIZE",
            help="Memory of the host.  [default: that of this machine]",
        ),
    ]
    ram: Annotated[
        Size | None,
        Option(
            group=RESOURCES,
            metavar="GB",
            help="Memory of the host; a bare number is in GB.",
        ),
    ]


@dataclass(frozen=True)
class GivenMachine:
    """The values of the options for the machine. None means that the value is read from this
    machine."""

    gpus: int | None
    gpu_memory: int | None
    host_memory: int | None
    notes: tuple[str, ...] = ()

    def machine(
        self, *, on_gpu: bool = True, look: Callable[[], Snapshot] | None = None
    ) -> Machine:
        """Return the machine that the options describe.

        `look` returns a snapshot of this machine, which gives the values that no option sets. The
        notes of the result list assumptions and their sources.
        """
        memory, host = self.gpu_memory, self.host_memory
        count, notes = self.gpus, list(self.notes)
        if host is None or (on_gpu and (memory is None or count is None)):
            seen, least, total, drawn = _memory_in((look or _look_here)())
            if host is None:
                host = total
                notes.append("host memory: that of this machine; --host-memory sets another value")
            if on_gpu and count is None:
                count = seen or 1
            if on_gpu and memory is None:
                memory = least or ASSUMED_GPU
                what = (
                    "that of this machine"
                    if least
                    else "80 GiB, because this machine has no visible GPU"
                )
                what += f", without {drawn / 2**30:.1f} GiB that a desktop uses" if drawn else ""
                notes.append(f"GPU memory: {what}; --gpu-memory sets another value")
        return Machine(count or 1, memory or 0, host, on_gpu, tuple(notes))


def given_machine(given: Mapping[str, Any]) -> GivenMachine:
    """Return the values of the options for the machine. `given` are bound `MachineOptions`.

    Raises:
        BadRequest: no machine has so much memory, or two options contradict each other.
    """
    cards: Cards = given["gpus"] or Cards()
    memory, host = given["gpu_memory"], given["host_memory"]
    _check("--gpu-memory", memory, MOST_GPU_MEMORY, "GPU")
    if cards.memory is not None and memory is not None:
        raise BadRequest(
            "--gpus already gives the memory of each card; leave --gpu-memory out, or give "
            f"--gpus {cards.count}"
        )
    name = "--host-memory"
    if given["ram"] is not None:
        if host is not None:
            raise BadRequest("--ram and --host-memory set the same value; leave one of them out")
        host, name = given["ram"], "--ram"
        host *= 10**9 if host < _LEAST_BYTES else 1
    _check(name, host, MOST_HOST_MEMORY, "machine")
    notes = () if cards.note is None else (cards.note,)
    return GivenMachine(cards.count, cards.memory or memory, host, notes)


def _look_here() -> Snapshot:
    from zerotools.sensors.snapshot_source import (
        SnapshotSource,  # takes 30 ms, not needed if all options are given
    )

    with SnapshotSource() as source:
        return source.read()


def _memory_in(found: Snapshot) -> tuple[int, int | None, int, int]:
    """Return four values from a snapshot of this machine; sizes are in bytes.

    The values are the number of GPUs, the memory for jobs on the GPU with the least (None: no GPU),
    the memory of the host, and the memory of that GPU that programs use to draw on a screen.
    """
    sizes = [
        (gpu.memory_total_bytes - drawn_bytes(gpu), drawn_bytes(gpu))
        for gpu in found.gpus
        if gpu.memory_total_bytes
    ]
    least, drawn = min(sizes, default=(None, 0))
    return len(found.gpus), least, found.host.memory_total_bytes, drawn


def _check(name: str, given: int | None, most: int, what: str) -> None:
    if given is not None and given > most:
        raise BadRequest(
            f"{name} is {given / 2**30:,.0f} GiB, and no {what} has more than "
            f"{most / 2**30:,.0f} GiB; check the unit"
        )


class TrainingOptions(TypedDict, total=False):
    """Options that describe a training."""

    batch: Annotated[
        int | None,
        Option(
            group=TRAINING,
            least=1,
            most=2**20,
            metavar="N",
            help="Number of sequences that a GPU computes at a time.  [default: 1]",
        ),
    ]
    sequence_length: Annotated[
        int | None,
        Option(
            group=TRAINING,
            least=1,
            most=2**24,
            metavar="TOKENS",
            help="Length of a sequence in tokens.  [default: the longest that the model allows, "
            "at most 2048]",
        ),
    ]
    precision: Annotated[
        Literal["bf16", "fp16", "fp32"] | None,
        Option(group=TRAINING, help="Dtype of the forward and backward pass.  [default: bf16]"),
    ]
    optimizer: Annotated[
        Literal["adamw", "adam", "sgd", "adafactor", "muon", "adamw8bit"] | None,
        Option(group=TRAINING, help="The optimizer of the training.  [default: adamw]"),
    ]
    engine: Annotated[
        Literal["torch", "deepspeed"] | None,
        Option(group=TRAINING, help="The engine that trains.  [default: torch]"),
    ]
    accumulation: Annotated[
        int | None,
        Option(
            group=TRAINING,
            least=1,
            most=2**20,
            metavar="N",
            help="Micro batches for a step; their gradients are summed.  [default: 1]",
        ),
    ]
    activation_checkpointing: Annotated[
        bool,
        Option(
            group=TRAINING,
            help="Compute the blocks again in the backward pass, which saves memory.",
        ),
    ]


class ShownOptions(TypedDict, total=False):
    """Options that select rows of the table."""

    stage: Annotated[
        Literal[0, 1, 2, 3, "all"],
        Option(group=OUTPUT, default="all", help="Show only this ZeRO stage."),
    ]
    offload: Annotated[
        Words,
        Option(
            group=OUTPUT,
            choices=OFFLOADS,
            help="Show only this kind of offload; may be repeated.  [default: all kinds]",
        ),
    ]


class EstimateKeywords(TrainingOptions, ShownOptions, MachineOptions, total=False):
    """The options of `zerotools estimate`, except the options that name a config."""


@takes_options(EstimateKeywords)
def estimate(model: StrPath, **options: Unpack[EstimateKeywords]) -> Estimate:
    """Predict the memory that training `model` needs, and find the fastest ZeRO stage that fits.

    `model` is a Hugging Face directory or config.json, a checkpoint of any format, a number of
    parameters such as "7B", or a job file with its training options. Weights are not loaded: shapes
    come from configs and headers. In the result, `stage`, `offload` and `reason` are the choice,
    and `rows` is the table. `fits` is True if a row of the table fits. For a job file it is True if
    the job fits as it is written.

    Raises:
        BadRequest: the model does not exist, its config lacks a size, or an option is wrong.
        BadFile: a checkpoint is damaged.
        Unsupported: the architecture is not known and transformers is not installed; or a job file
            has a DeepSpeed configuration, which only the command can read.
    """
    given, name = bind_options(EstimateKeywords, options), str(path_of(model))
    if not is_job_file(Path(name)):
        return estimated_model(name, given_machine(given).machine(), given)
    refuse_fixed(name, given)
    from zerotools.cli.options.import_options import read_job_file

    job = read_job_file(name)
    if isinstance(job.tree.get("deepspeed"), dict):
        raise Unsupported(
            f"{name} has [deepspeed], which only the command line imports; use zerotools "
            f"estimate {name}"
        )
    spec = job_from_tree(job.tree, source=job.source, base_dir=job.base_dir)
    return estimated_job(spec, given_machine(given), given)


def refuse_fixed(says: str, given: Mapping[str, Any], allowed: Container[str] = ()) -> None:
    """Raise an error if an option was given although a job file or a config already sets its value.

    `says` names the file in the message. Options in `allowed` are accepted.

    Raises:
        BadRequest: an option was given that the file sets, and that is not in `allowed`.
    """
    names = [name for name in declared_options(TrainingOptions) if given[name]]
    flags = [f"--{name.replace('_', '-')}" for name in names if name not in allowed]
    if flags:
        raise BadRequest(f"{', '.join(flags)}: {says} already has this value; change it there")


def estimated_job(spec: JobSpec, machine: GivenMachine, given: Mapping[str, Any]) -> Estimate:
    """Estimate the memory of the job that a job file describes, as written and with every other
    ZeRO stage and offload."""
    if machine.gpus is not None:
        spec = with_ranks(spec, machine.gpus)
    own = replace(machine, gpus=spec.all_ranks).machine(on_gpu=spec.device == "cuda")
    node_ranks = spec.world_size if spec.fewest_nodes > 1 else None
    return estimate_job(
        workload_of(spec),
        replace(own, node_ranks=node_ranks),
        shown_stages(given),
        given["offload"] or OFFLOADS,
        given_of(spec),  # with absolute paths
    )


def estimated_model(model: str, machine: Machine, given: Mapping[str, Any]) -> Estimate:
    """Estimate the memory that training a model on a machine needs. `given` are bound
    `EstimateKeywords`."""
    return estimate_model(
        read_shape(model),
        machine,
        TrainingSettings(
            batch=given["batch"] or 1,
            sequence=given["sequence_length"],
            precision=given["precision"] or "bf16",
            optimizer=given["optimizer"] or "adamw",
            engine=given["engine"] or "torch",
            accumulation=given["accumulation"] or 1,
            checkpointing=given["activation_checkpointing"],
        ),
        stages=shown_stages(given),
        offloads=given["offload"] or OFFLOADS,
        model_table=model_table_of(str(Path(model))),
    )


def shown_stages(given: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ZeRO stages that the option `stage` selects."""
    return STAGES if given["stage"] == "all" else (given["stage"],)
