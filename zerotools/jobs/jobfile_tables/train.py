"""`[train]` of the job file: steps, batch size, precision, optimizer and learning rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from zerotools.core.loss_chunk_sizes import CUT
from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key

PRECISIONS = ("fp32", "bf16", "fp16")
OPTIMIZERS = ("adamw", "adam", "sgd", "adafactor", "muon", "adamw8bit")
MUON_SCALES = ("match_rms_adamw", "original")
DECAY_RULES = ("names", "shapes")
SCHEDULES = ("cosine", "linear", "constant", "wsd")
OLD_FORM = "zerotools-0.2"
"""The value of `schedule_form` for jobs and checkpoints that were stored before this key
existed.
"""


@dataclass(frozen=True, kw_only=True)
class TrainSpec:
    """`[train]`: steps, batch size, precision, optimizer and learning rate."""

    steps: int | None = key(
        "Optimizer steps in the whole run, including those before a resume and the skipped steps "
        "of fp16 training. Set one of `steps` and `epochs`.",
        default=None,
        minimum=1,
        deepspeed="scheduler.params.total_num_steps",
    )
    epochs: float | None = key(
        "Instead of `steps`: the number of passes over the data. If the last step is not full, it "
        "also takes sequences of the next pass.",
        default=None,
        above=0,
        imported=False,
    )
    batch_size: int = key(
        "Sequences in one optimizer step, over all ranks. Must be divisible by the world size.",
        minimum=1,
        deepspeed="train_batch_size",
    )
    micro_batch_size: int | None = key(
        "Sequences in one forward pass of one rank. If a rank has more per step, their gradients "
        "are accumulated. Default: all sequences that the rank has per step.",
        default=None,
        minimum=1,
        deepspeed="train_micro_batch_size_per_gpu",
    )
    accumulate: str | None = key(
        "How the gradients of micro batches are added up. `sharded`: they are reduced after each "
        "micro batch, and a rank keeps the fp32 sums of its own part. `local`: they are reduced "
        "only once per step, which is faster, but each rank needs 4 bytes for every parameter. "
        "Default: `sharded` at stages 2 and 3, `local` at stages 0 and 1.",
        default=None,
        allowed=("sharded", "local"),
        stored_default="local",
        engine="torch",
        imported=False,
    )
    precision: str = key(
        "Type of the forward and backward pass; master weights and optimizer state stay in fp32. "
        "bf16 needs GPUs of compute capability 8.0 or more (not V100 or T4).",
        default="bf16",
        allowed=PRECISIONS,
        deepspeed="bf16.enabled",
        accelerate="mixed_precision",
    )
    activation_checkpointing: bool = key(
        "Keep only the inputs of the model's blocks for the backward pass and recompute the "
        "rest: less memory, about a third more work.",
        default=False,
        accelerate="fsdp_config.fsdp_activation_checkpointing",
    )
    chunked_loss: str = key(
        "Compute the loss of a causal model in parts, so that the logits of a whole batch are "
        'never in memory. `"auto"`: if there are more than 67 million logits; `"on"`: always, in '
        "parts of 128 tokens or more. The backward pass computes the logits again.",
        default="auto",
        stored_default="off",
        allowed=CUT,
        imported=False,
    )
    keep_fp32: bool = key(
        "Whether the modules that transformers keeps in fp32 (a model's "
        "`_keep_in_fp32_modules`) compute in fp32 if `precision` is a 16-bit type. DeepSpeed "
        "does this only for buffers.",
        default=True,
        stored_default=False,
        imported=False,
    )
    router_bias_rate: float = key(
        "Step size of the bias with which DeepSeek's routers choose experts "
        "(`e_score_correction_bias`). Each step moves it towards experts with fewer tokens than "
        "the mean; DeepSeek-V3 used 0.001. With 0 the bias does not change, like in transformers.",
        default=0.0,
        stored_default=0.0,
        minimum=0,
        imported=False,
    )
    router_loss: bool = key(
        "Whether to add the loss that balances a router's experts, multiplied by "
        "`router_aux_loss_coef` of the model config. As in transformers, this needs "
        "`output_router_logits` in the model config.",
        default=True,
        stored_default=False,
        imported=False,
    )
    compile: bool = key(
        "Compile the forward and backward pass of each block (torch.compile): the start takes "
        "minutes longer, steps are faster.",
        default=False,
        engine="torch",
        deepspeed="compile.deepcompile",
        accelerate="dynamo_config",
    )
    optimizer: str = key(
        "The optimizer. AdamW keeps two numbers per element. Adam also keeps two, but adds the "
        "weight decay to the gradient. Adafactor keeps one number per row and column of a matrix. "
        "Muon keeps one number per element of a matrix, and leaves embeddings, the head and "
        "weights that are not matrices to AdamW. AdamW8bit keeps two numbers of one byte per "
        "element.",
        default="adamw",
        allowed=OPTIMIZERS,
        deepspeed="optimizer.type",
    )
    learning_rate: float = key(
        "Peak learning rate.", default=3e-4, above=0, deepspeed="optimizer.params.lr"
    )
    schedule: str = key(
        'The learning rate after the warm-up. `"cosine"` and `"linear"` lower it to '
        '`min_learning_rate` along half a cosine or a straight line. `"constant"` keeps it. '
        '`"wsd"` keeps it until the last `decay_steps`, and then lowers it.',
        default="cosine",
        allowed=SCHEDULES,
        deepspeed="scheduler.type",
    )
    schedule_form: str = key(
        "The exact curves of `schedule`. `transformers`: the curves of the Trainer and of "
        "`transformers.get_scheduler`; the first step of a warm-up has the rate 0, the rate "
        "reaches `min_learning_rate` only one step after the last, and `wsd` ends in half a "
        "cosine. `zerotools-0.2`: the first step of a warm-up has a rate above 0, the rate "
        "reaches `min_learning_rate` in the last step, and `wsd` ends in a straight line.",
        default="transformers",
        stored_default=OLD_FORM,
        allowed=("transformers", OLD_FORM),
        imported=False,
    )
    warmup_steps: int = key(
        "Steps of linear warm-up.",
        default=0,
        minimum=0,
        deepspeed="scheduler.params.warmup_num_steps",
    )
    warmup_ratio: float = key(
        "Instead of `warmup_steps`: the fraction of all steps, rounded up to a whole step.",
        default=0.0,
        stored_default=0.0,
        minimum=0,
        engine="torch",
        imported=False,
    )
    decay_steps: int | None = key(
        'Number of steps at the end of a `"wsd"` schedule that lower the rate to '
        "`min_learning_rate`; default: a tenth of `steps`.",
        default=None,
        minimum=1,
        imported=False,
    )
    min_learning_rate: float = key(
        "Learning rate at the end of the schedule.",
        default=0.0,
        minimum=0,
        deepspeed="scheduler.params.cos_min_ratio",
    )
    weight_decay: float = key(
        "Weight decay of the parameters that `decay_by` chooses. AdamW and Muon apply it to "
        "the weights; SGD and Adam add it to the gradient.",
        default=0.1,
        minimum=0,
        deepspeed="optimizer.params.weight_decay",
    )
    decay_by: str = key(
        'The parameters that decay. `"names"`: all except biases and norms, like in '
        'transformers\' Trainer. `"shapes"`: those with two or more dimensions, like in earlier '
        "versions. A resumed run keeps the choice of its checkpoint.",
        default="names",
        stored_default="shapes",
        allowed=DECAY_RULES,
        imported=False,
    )
    momentum: float = key(
        "SGD's momentum, below 1; 0 keeps no state.",
        default=0.9,
        minimum=0,
        deepspeed="optimizer.params.momentum",
    )
    muon_learning_rate: float | None = key(
        "Peak learning rate of the matrices that Muon updates; `schedule` and `warmup_steps` "
        "change it like `learning_rate`, which is its default.",
        default=None,
        stored_default=None,
        above=0,
        engine="torch",
        deepspeed="optimizer.params.muon_lr",
    )
    muon_momentum: float = key(
        "Muon's (Nesterov) momentum, below 1.",
        default=0.95,
        stored_default=0.95,
        minimum=0,
        engine="torch",
        imported=False,
    )
    muon_scale: str = key(
        "The factor by which Muon's learning rate is multiplied for a matrix of A rows and B "
        "columns. `match_rms_adamw`: 0.2 sqrt(max(A, B)), so that the same learning rate suits "
        "Muon and AdamW. `original`: sqrt(max(1, A / B)).",
        default="match_rms_adamw",
        stored_default="match_rms_adamw",
        allowed=MUON_SCALES,
        engine="torch",
        imported=False,
    )
    betas: tuple[float, ...] = key(
        "Betas of AdamW and Adam.", default=(0.9, 0.95), deepspeed="optimizer.params.betas"
    )
    eps: float = key(
        "Epsilon of AdamW and Adam.", default=1e-8, above=0, deepspeed="optimizer.params.eps"
    )
    max_grad_norm: float = key(
        "Gradients are clipped to this global norm; 0 switches clipping off.",
        default=1.0,
        minimum=0,
        deepspeed="gradient_clipping",
    )
    stop_after_nan: int = key(
        "The job ends after this many steps in a row with a loss or gradient that is not finite. "
        "Each such step is skipped: the weights and the learning rate's schedule do not change. "
        "fp16 training follows `[fp16]` instead.",
        default=1,
        minimum=1,
        imported=False,
    )

    @property
    def total_steps(self) -> int:
        """The number of training steps.

        If the job file has `epochs`, the trainer computes this number later.

        Raises ValueError: the number is not computed yet.
        """
        if self.steps is None:
            raise ValueError("the data of this job is not counted yet")
        return self.steps


def check_train(train: TrainSpec) -> Iterator[str]:
    """Yield the problems in `[train]` that do not depend on other tables."""
    if train.compile and train.router_bias_rate:
        yield (
            f"train.router_bias_rate = {train.router_bias_rate}: cannot be combined with "
            "train.compile, which does not count the tokens of experts; leave one out"
        )
    yield from check_length(train)
    yield from _check_decay(train)
    if train.schedule != "constant" and train.min_learning_rate > train.learning_rate:
        yield (
            f"train.min_learning_rate = {train.min_learning_rate}: must be at most "
            f"train.learning_rate, which is {train.learning_rate}"
        )
    if len(train.betas) != 2 or not all(0 <= beta < 1 for beta in train.betas):
        yield f"train.betas = {format_value(train.betas)}: must be two numbers in [0, 1)"


def check_length(train: TrainSpec) -> Iterator[str]:
    """Yield each problem with the number of training steps, and with the steps of warmup and
    decay.

    If the job has `epochs` in place of `steps`, warmup and decay are not compared with the number
    of steps.
    """
    if train.steps is None and train.epochs is None:
        yield "train: needs train.steps or train.epochs; set one of them"
    if train.warmup_ratio > 1:
        yield f"train.warmup_ratio = {train.warmup_ratio}: must be at most 1"
    if train.warmup_ratio and train.warmup_steps:
        yield (
            f"train.warmup_ratio = {train.warmup_ratio}: cannot be combined with "
            f"train.warmup_steps, which is {train.warmup_steps}; leave one out"
        )
    if train.steps is None:
        return
    if train.epochs is not None:
        yield "train: train.steps and train.epochs cannot be combined; leave one out"
    if train.warmup_steps > train.steps:
        yield (
            f"train.warmup_steps = {train.warmup_steps}: must be at most train.steps, "
            f"which is {train.steps}"
        )
    decay = train.decay_steps if train.schedule == "wsd" else None
    if decay is not None and train.warmup_steps + decay > train.steps:
        yield (
            f"train.decay_steps = {decay}: together with train.warmup_steps = "
            f"{train.warmup_steps} it exceeds train.steps = {train.steps}; set a smaller value"
        )


def _check_decay(train: TrainSpec) -> Iterator[str]:
    for name in ("momentum", "muon_momentum"):
        if getattr(train, name) >= 1:
            yield f"train.{name} = {getattr(train, name)}: must be less than 1"
    if train.decay_steps is not None and train.schedule != "wsd":
        yield (
            f"train.decay_steps = {train.decay_steps}: cannot be used in a "
            f'train.schedule = "{train.schedule}" job; leave it out, or set "wsd"'
        )


_OWNERS: Mapping[str, tuple[str, ...]] = {
    "momentum": ("sgd",),
    "betas": ("adamw", "adam", "muon", "adamw8bit"),
    "eps": ("adamw", "adam", "muon", "adamw8bit"),
    "muon_learning_rate": ("muon",),
    "muon_momentum": ("muon",),
    "muon_scale": ("muon",),
}
"""Key -> the optimizers of engine `torch` that use it."""


def check_optimizer(train: TrainSpec) -> Iterator[str]:
    """Yield a problem for each key that the job sets but its optimizer (of engine `torch`) does
    not use.
    """
    unset = TrainSpec(batch_size=train.batch_size)
    for name, owners in _OWNERS.items():
        value = getattr(train, name)
        if train.optimizer not in owners and value != getattr(unset, name):
            yield (
                f"train.{name} = {format_value(value)}: cannot be used in a "
                f'train.optimizer = "{train.optimizer}" job; leave it out, or set "{owners[0]}"'
            )
