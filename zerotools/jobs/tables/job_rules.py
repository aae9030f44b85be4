"""What the keys of a job file demand of one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from zerotools.jobs.binding.bind import show
from zerotools.jobs.tables.checkpoint_rules import check_checkpoints, check_time_limit
from zerotools.jobs.tables.data_rules import check_data, with_data_paths
from zerotools.jobs.tables.deepspeed_rules import check_deepspeed
from zerotools.jobs.tables.generation_rules import check_generation
from zerotools.jobs.tables.lora import check_lora
from zerotools.jobs.tables.offload_rules import check_offload, check_sharding
from zerotools.jobs.tables.script_rules import check_script, with_script_paths
from zerotools.jobs.tables.spec import Fp16Spec, JobSpec, TrainSpec

RESERVED_ENV = frozenset(
    {
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "ZEROTOOLS_NOTIFY",
        "ZEROTOOLS_OUTPUT_DIR",
        "ZEROTOOLS_RESUME_FROM",
        "ZEROTOOLS_RUN_DIR",
        "ZEROTOOLS_TOKEN",
    }
)
"""Variables that each rank gets from the daemon."""


FP16_ON_CPU = "ZEROTOOLS_FP16_ON_CPU"
"""`env.ZEROTOOLS_FP16_ON_CPU = "1"` lets a job train in fp16 on CPUs: for tests and recipes."""


def check(spec: JobSpec) -> tuple[list[str], list[str]]:
    """What is wrong with `spec`, and what in it is legitimate but not supported."""
    if spec.engine == "script":
        own = [*check_script(spec), *check_time_limit(spec)]
        return [*_check_ranks(spec), *own, *_check_names(spec)], []
    wrong = [
        *_check_ranks(spec),
        *_check_model(spec),
        *check_data(spec),
        *check_generation(spec),
        *check_lora(spec.lora),
        *_check_batch(spec),
        *_check_training(spec),
        *_check_loss_scale(spec),
        *check_checkpoints(spec),
        *check_time_limit(spec),
        *check_offload(spec),
        *check_sharding(spec),
        *_check_names(spec),
        *check_deepspeed(spec),
    ]
    return wrong, list(_check_supported(spec))


def _check_ranks(spec: JobSpec) -> Iterator[str]:
    if spec.device == "cpu" and spec.gpus is not None:
        yield f'gpus = {show(spec.gpus)}: has no place in a device = "cpu" job; set ranks instead'
    if spec.device == "cuda" and spec.ranks is not None:
        yield f'ranks = {spec.ranks}: has no place in a device = "cuda" job; set gpus instead'
    if isinstance(spec.gpus, int) and spec.gpus < 1:
        yield f"gpus = {spec.gpus}: must be at least 1"
    if isinstance(spec.gpus, tuple):
        yield from _check_gpu_list(spec.gpus)


def _check_gpu_list(gpus: tuple[int | str, ...]) -> Iterator[str]:
    if not gpus:
        yield "gpus = []: must name at least one GPU"
    if len(set(gpus)) != len(gpus):
        yield f"gpus = {show(gpus)}: names a GPU twice"
    for gpu in gpus:
        if isinstance(gpu, int) and gpu < 0:
            yield f"gpus = {show(gpus)}: an index must be at least 0, not {gpu}"
        if isinstance(gpu, str) and not gpu.startswith("GPU-"):
            yield f'gpus = {show(gpus)}: {show(gpu)} is not a UUID; one starts with "GPU-"'


def _check_model(spec: JobSpec) -> Iterator[str]:
    if spec.model.config is None and spec.model.path is None:
        yield "model: one of model.config (start from random weights) and model.path is needed"
    if spec.model.config is not None and spec.model.path is not None:
        yield "model: model.config and model.path exclude one another; leave one out"


def _check_batch(spec: JobSpec) -> Iterator[str]:
    world, batch, micro = spec.world_size, spec.train.batch_size, spec.train.micro_batch_size
    if world < 1:
        return
    if batch % world:
        yield f"train.batch_size = {batch}: must be divisible by the {world} ranks"
    elif micro is not None and (batch // world) % micro:
        yield (
            f"train.micro_batch_size = {micro}: must divide the {batch // world} sequences of a "
            f"rank (train.batch_size {batch} over {world} rank{'s' * (world > 1)})"
        )


def _check_training(spec: JobSpec) -> Iterator[str]:
    train = spec.train
    yield from check_length(train)
    yield from _check_decay(train)
    if spec.engine == "torch":
        yield from _check_optimizer(train)
    if train.schedule != "constant" and train.min_learning_rate > train.learning_rate:
        yield (
            f"train.min_learning_rate = {train.min_learning_rate}: must be at most "
            f"train.learning_rate, which is {train.learning_rate}"
        )
    if len(train.betas) != 2 or not all(0 <= beta < 1 for beta in train.betas):
        yield f"train.betas = {show(train.betas)}: must be two numbers in [0, 1)"


def check_length(train: TrainSpec) -> Iterator[str]:
    """What is wrong with the parts of the schedule, as far as the number of steps is known."""
    if train.steps is None and train.epochs is None:
        yield "train: one of train.steps and train.epochs is needed"
    if train.steps is None:
        return
    if train.epochs is not None:
        yield "train: train.steps and train.epochs exclude one another; leave one out"
    if train.warmup_steps > train.steps:
        yield (
            f"train.warmup_steps = {train.warmup_steps}: must be at most train.steps, "
            f"which is {train.steps}"
        )
    decay = train.decay_steps if train.schedule == "wsd" else None
    if decay is not None and train.warmup_steps + decay > train.steps:
        yield (
            f"train.decay_steps = {decay}: must leave room for train.warmup_steps, "
            f"which is {train.warmup_steps}, in train.steps, which is {train.steps}"
        )


def _check_decay(train: TrainSpec) -> Iterator[str]:
    if train.momentum >= 1:
        yield f"train.momentum = {train.momentum}: must be less than 1"
    if train.decay_steps is not None and train.schedule != "wsd":
        yield (
            f"train.decay_steps = {train.decay_steps}: has no place in a "
            f'train.schedule = "{train.schedule}" job; leave it out, or set "wsd"'
        )


def _check_optimizer(train: TrainSpec) -> Iterator[str]:
    unset = TrainSpec(batch_size=train.batch_size)
    for owner, name in (("sgd", "momentum"), ("adamw", "betas"), ("adamw", "eps")):
        value = getattr(train, name)
        if train.optimizer != owner and value != getattr(unset, name):
            yield (
                f"train.{name} = {show(value)}: has no place in a "
                f'train.optimizer = "{train.optimizer}" job; leave it out, or set "{owner}"'
            )


def _check_loss_scale(spec: JobSpec) -> Iterator[str]:
    fp16, precision = spec.fp16, spec.train.precision
    if precision != "fp16" and fp16 != Fp16Spec():
        yield (
            f'fp16: has no place in a train.precision = "{precision}" job; leave [fp16] out, or '
            'set train.precision = "fp16"'
        )
    first = 2.0**fp16.initial_scale_power
    if not fp16.loss_scale and fp16.min_loss_scale > first:
        yield (
            f"fp16.min_loss_scale = {fp16.min_loss_scale:g}: must be at most the first scale, "
            f"which is {first:g} (2 to the power of fp16.initial_scale_power)"
        )


def _check_names(spec: JobSpec) -> Iterator[str]:
    if spec.name is not None and not (spec.name.isprintable() and 0 < len(spec.name) <= 200):
        yield f"name = {show(spec.name)}: must be 1 to 200 printable characters"
    for name in spec.env:
        if not name or "=" in name:
            yield f"env.{show(name, bare=True)}: is not a name for an environment variable"
        elif name in RESERVED_ENV:
            yield f"env.{name}: is set by the daemon for each rank; leave it out"


def _check_supported(spec: JobSpec) -> Iterator[str]:
    if spec.train.precision == "fp16" and spec.device == "cpu" and spec.env.get(FP16_ON_CPU) != "1":
        yield 'train.precision = "fp16": is for GPUs; on device = "cpu" use "bf16" or "fp32"'


PathFix = Callable[[str, str], str]
"""(dotted key, path) -> absolute path."""


def with_paths(spec: JobSpec, fix: PathFix) -> JobSpec:
    """`spec` with every path in it passed through `fix`."""
    spec = with_script_paths(spec, fix)
    model = spec.model

    def maybe(name: str, value: str | None) -> str | None:
        return None if value is None else fix(name, value)

    config = model.config
    spec = with_data_paths(spec, fix)
    return replace(
        spec,
        python=maybe("python", spec.python),
        output_dir=maybe("output_dir", spec.output_dir),
        resume_from=maybe("resume_from", spec.resume_from),
        offload=replace(spec.offload, path=maybe("offload.path", spec.offload.path)),
        deepspeed=replace(
            spec.deepspeed,
            config=(
                fix("deepspeed.config", spec.deepspeed.config)
                if isinstance(spec.deepspeed.config, str)
                else spec.deepspeed.config
            ),
        ),
        model=replace(
            model,
            config=fix("model.config", config) if isinstance(config, str) else config,
            path=maybe("model.path", model.path),
        ),
    )
