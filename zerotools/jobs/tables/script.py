"""`[script]` and `[metrics]`: a training program of the user's own, and what a run writes down."""

from __future__ import annotations

from dataclasses import dataclass

from zerotools.jobs.binding.declaration import key

LAUNCHERS = ("plain", "torchrun", "accelerate", "deepspeed")
TENSORBOARD = ("auto", "on", "off")


@dataclass(frozen=True, kw_only=True)
class ScriptSpec:
    """`[script]`: the program of an `engine = "script"` job; see
    [run your own script](../how-to/run-your-own-script.md)."""

    command: tuple[str, ...] = key(
        "The program and its arguments, one word each; no shell reads them. A first word that ends "
        "in `.py`, or `-m` and a module, is run by `python`."
    )
    launcher: str = key(
        "What starts the ranks: the daemon itself (`plain`, with torch's `env://` variables), or "
        "`torchrun`, `accelerate launch` or `deepspeed` under the job's `python`.",
        default="plain",
        allowed=LAUNCHERS,
    )
    launcher_options: tuple[str, ...] = key(
        'Further options of the launcher, such as `["--config_file", "accelerate.yaml"]`.',
        default=(),
    )
    directory: str = key(
        "The working directory; default: that of the job file.",
        default=".",
    )
    checkpoint_dir: str | None = key(
        "Where the program keeps its checkpoints; it is watched for new ones. When the program is "
        "started again, `ZEROTOOLS_RESUME_FROM` names the newest that is whole.",
        default=None,
    )


@dataclass(frozen=True, kw_only=True)
class MetricsSpec:
    """`[metrics]`: what is written into `output_dir` at every step; see
    [metrics and plots](../how-to/metrics-and-plots.md)."""

    jsonl: bool = key("`metrics.jsonl`, one JSON object per step and per evaluation.", default=True)
    tensorboard: str = key(
        "Event files in `tensorboard/`; `auto`: where TensorBoard is installed for the job's "
        "`python`.",
        default="auto",
        allowed=TENSORBOARD,
    )
