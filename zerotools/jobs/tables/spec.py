"""The job file: one frozen `JobSpec`, and what each key means.

The dataclasses are the schema. Every field carries its meaning, its bounds and its allowed values
in `key(...)`; the parser (`zerotools.jobs.jobfile.parse`) and `docs/reference/job-file.md` are both
driven by them, so a key that is not here does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zerotools.jobs.binding.declaration import key
from zerotools.jobs.tables.checkpoint import CheckpointSpec
from zerotools.jobs.tables.data import DataSpec, EvalSpec
from zerotools.jobs.tables.deepspeed import DeepSpeedSpec
from zerotools.jobs.tables.lora import LoraSpec
from zerotools.jobs.tables.offload import OffloadSpec
from zerotools.jobs.tables.script import MetricsSpec, ScriptSpec

ENGINES = ("torch", "deepspeed", "script")
DEVICES = ("cuda", "cpu")
PRECISIONS = ("fp32", "bf16", "fp16")
OPTIMIZERS = ("adamw", "sgd", "adafactor")
SCHEDULES = ("cosine", "linear", "constant", "wsd")


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """`[model]`: what is trained. One of `config` and `path`."""

    config: str | Mapping[str, Any] | None = key(
        "A Hugging Face model config: a table here, or the path of a `config.json`. "
        "The weights start from `seed`.",
        default=None,
    )
    path: str | None = key(
        "A Hugging Face model directory (config and safetensors) whose weights are trained on.",
        default=None,
    )


@dataclass(frozen=True, kw_only=True)
class TrainSpec:
    """`[train]`: the optimisation."""

    steps: int | None = key(
        "Optimizer steps in the whole run, those before a resume included, and those of fp16 "
        "training that were skipped. One of `steps` and `epochs`.",
        default=None,
        least=1,
    )
    epochs: float | None = key(
        "Instead of `steps`: how often the data is gone through; the last step is filled up from "
        "the next epoch.",
        default=None,
        above=0,
    )
    batch_size: int = key(
        "Sequences in one optimizer step, over all ranks. Divisible by the world size.", least=1
    )
    micro_batch_size: int | None = key(
        "Sequences in one forward pass of one rank; the rest is accumulated. "
        "Default: as many as the rank has in a step.",
        default=None,
        least=1,
    )
    precision: str = key(
        "Type of the forward and backward pass; masters and optimizer stay fp32.",
        default="bf16",
        allowed=PRECISIONS,
    )
    activation_checkpointing: bool = key(
        "Keep the inputs of the model's blocks alone for the backward pass and compute what lies "
        "between again: less memory, about a third more work.",
        default=False,
    )
    compile: bool = key(
        "Compile the forward and backward pass of each block (torch.compile): minutes more at the "
        "start, faster steps.",
        default=False,
    )
    optimizer: str = key(
        "What updates the weights. Adafactor keeps one number per row and column of a matrix in "
        "place of AdamW's two per element.",
        default="adamw",
        allowed=OPTIMIZERS,
    )
    learning_rate: float = key("Peak learning rate.", default=3e-4, above=0)
    schedule: str = key(
        "Learning rate after the warm-up: half a cosine or a straight line down to "
        '`min_learning_rate`, the peak throughout, or (`"wsd"`) the peak and then `decay_steps`.',
        default="cosine",
        allowed=SCHEDULES,
    )
    warmup_steps: int = key("Steps of linear warm-up.", default=0, least=0)
    decay_steps: int | None = key(
        'The last steps of a `"wsd"` schedule, a straight line down to `min_learning_rate`; '
        "default: a tenth of `steps`.",
        default=None,
        least=1,
    )
    min_learning_rate: float = key("Learning rate at the last step.", default=0.0, least=0)
    weight_decay: float = key(
        "Decay of tensors of two or more dimensions: AdamW's own, or added to SGD's gradient.",
        default=0.1,
        least=0,
    )
    momentum: float = key("SGD's momentum, below 1; 0 keeps no state.", default=0.9, least=0)
    betas: tuple[float, ...] = key("AdamW's betas.", default=(0.9, 0.95))
    eps: float = key("AdamW's epsilon.", default=1e-8, above=0)
    max_grad_norm: float = key(
        "Gradients are clipped to this global norm; 0 switches it off.", default=1.0, least=0
    )
    stop_after_nan: int = key(
        "The job ends at so many steps in a row whose loss or gradient is not finite. Each of them "
        "is skipped: the weights stay, the learning rate's schedule waits. fp16 training goes by "
        "`[fp16]` in its place.",
        default=1,
        least=1,
    )

    @property
    def total_steps(self) -> int:
        """`steps`; the trainer puts them in where the job file has `epochs`.

        Raises ValueError: it has not yet.
        """
        if self.steps is None:
            raise ValueError("the data of this job is not counted yet")
        return self.steps


@dataclass(frozen=True, kw_only=True)
class Fp16Spec:
    """`[fp16]`: how a `train.precision = "fp16"` job scales its loss; DeepSpeed's names and rules.

    Where gradients overflow, the step is skipped: it counts, and the learning rate's schedule
    waits.
    """

    loss_scale: float = key(
        "A fixed scale; 0: it follows the gradients, by the keys below.", default=0.0, least=0
    )
    initial_scale_power: int = key(
        "The first scale, as a power of two.", default=16, least=0, most=64
    )
    loss_scale_window: int = key(
        "Steps without an overflow after which the scale doubles.", default=1000, least=1
    )
    hysteresis: int = key(
        "The scale halves with the overflow of this number; a doubling starts the count again.",
        default=2,
        least=1,
    )
    consecutive_hysteresis: bool = key(
        "Every step without an overflow starts that count again.", default=False
    )
    min_loss_scale: float = key(
        "The smallest scale; an overflow at it ends the job.", default=1.0, above=0
    )


@dataclass(frozen=True, kw_only=True)
class ZeroSpec:
    """`[zero]`: what is sharded over the ranks."""

    stage: int = key(
        "0 nothing, 1 optimizer state, 2 gradients too, 3 weights too.",
        default=3,
        allowed=(0, 1, 2, 3),
    )
    shard_size: int | None = key(
        "Ranks that share one copy of the model at stages 2 and 3, each such group having a copy "
        "of its own (HSDP); default: all ranks share one.",
        default=None,
        least=1,
    )


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One training job, every key valid and every relative path made absolute."""

    name: str | None = key(
        "A label for people; default: the job file's name without its ending.", default=None
    )
    engine: str = key(
        'What trains: `"torch"`, `"deepspeed"` by a configuration of its own, or `"script"`, a '
        "program of your own.",
        default="torch",
        allowed=ENGINES,
    )
    python: str | None = key(
        "The interpreter of the ranks, which must have torch and transformers, or what a script "
        "needs; default: the daemon's own.",
        default=None,
    )
    device: str = key("Where the ranks run.", default="cuda", allowed=DEVICES)
    gpus: int | tuple[int | str, ...] | None = key(
        'GPUs of a `device = "cuda"` job, one rank each: a number, or a list of indices '
        "or UUIDs; default 1.",
        default=None,
    )
    ranks: int | None = key('Ranks of a `device = "cpu"` job; default 1.', default=None, least=1)
    seed: int = key(
        "Initial weights, data order and dropout follow from it.",
        default=0,
        least=0,
        most=2**63 - 1,
    )
    output_dir: str | None = key(
        "Where checkpoints go; default: a directory of the job's own in the daemon's state "
        "directory.",
        default=None,
    )
    resume_from: str | None = key(
        "A checkpoint of an earlier job (`step-…`), or its output directory (the newest that "
        "verifies): the run goes on from there. A script is told of it in `ZEROTOOLS_RESUME_FROM`.",
        default=None,
    )
    max_restarts: int = key(
        "How often the job is started again after a crash; a crash that made no progress "
        "counts as one, progress gives the count back.",
        default=3,
        least=0,
    )
    time_limit: int | str | None = key(
        'How long the job may run, waiting not counted: seconds, or text such as `"2h"` or '
        '`"1d12h"`. Then it saves at its next step and is stopped; `zerotools resume` goes on.',
        default=None,
    )
    env: Mapping[str, str] = key(
        "Environment variables of the ranks. Values are never shown.", factory=dict
    )
    script: ScriptSpec = key("A program of one's own.", factory=lambda: ScriptSpec(command=()))
    model: ModelSpec = key("What is trained.", factory=ModelSpec)
    data: DataSpec = key("What it is trained on.", factory=DataSpec)
    train: TrainSpec = key("The optimisation.", factory=lambda: TrainSpec(batch_size=1))
    fp16: Fp16Spec = key("How fp16 training scales its loss.", factory=Fp16Spec)
    zero: ZeroSpec = key("What is sharded over the ranks.", factory=ZeroSpec)
    lora: LoraSpec = key("Adapters to train in place of the weights.", factory=LoraSpec)
    eval: EvalSpec = key("What it is measured by on the way.", factory=EvalSpec)
    offload: OffloadSpec = key("What does not stay on the GPU.", factory=OffloadSpec)
    checkpoint: CheckpointSpec = key("When checkpoints are written.", factory=CheckpointSpec)
    deepspeed: DeepSpeedSpec = key("DeepSpeed's own configuration.", factory=DeepSpeedSpec)
    metrics: MetricsSpec = key("What is written down at every step.", factory=MetricsSpec)
    given: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """Not a key: the tree of which the job was made. What is not in it was left to the defaults."""

    @property
    def stage(self) -> int | None:
        """The ZeRO stage; None: a program of the user's own decides."""
        return None if self.engine == "script" else self.zero.stage

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        if self.device == "cpu":
            return self.ranks or 1
        if self.gpus is None:
            return 1
        return self.gpus if isinstance(self.gpus, int) else len(self.gpus)
