"""`[metrics]` of the job file: the metrics that a job writes at every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key

TENSORBOARD = ("auto", "on", "off")
WANDB, MLFLOW = "wandb", "mlflow"
"""The supported experiment trackers.

These are the names of their Python packages and of their keys in `[metrics]`.
"""
_LONGEST_PROJECT = 128
_NOT_IN_PROJECTS = frozenset("\\#?%:")


@dataclass(frozen=True, kw_only=True)
class MetricsSpec:
    """`[metrics]`: the files in `output_dir` that are written at every step, and the trackers; see
    [metrics and plots](../how-to/metrics-and-plots.md)."""

    jsonl: bool = key(
        "Whether to write `metrics.jsonl`: one JSON object per step and per evaluation.",
        default=True,
        imported=False,
    )
    tensorboard: str = key(
        "Whether to write event files to `tensorboard/`; `auto`: if the job's `python` has "
        "TensorBoard.",
        default="auto",
        allowed=TENSORBOARD,
        imported=False,
    )
    wandb: str | None = key(
        "A project of Weights & Biases to which every step is also logged: `project`, or "
        "`entity/project`. Needs `wandb` in the job's `python`. See [wandb and "
        "MLflow](../how-to/metrics-and-plots.md#wandb-and-mlflow).",
        default=None,
        stored_default=None,
        deepspeed="wandb.project",
    )
    mlflow: str | None = key(
        "The name of an MLflow experiment to which every step is also logged, on the server of "
        "`MLFLOW_TRACKING_URI`, or in `output_dir` if that variable is not set. Needs `mlflow` or "
        "`mlflow-skinny` in the job's `python`.",
        default=None,
        stored_default=None,
        imported=False,
    )

    @property
    def trackers(self) -> dict[str, str]:
        """The experiment trackers that the job uses: name of a tracker -> its project or
        experiment.
        """
        named = {WANDB: self.wandb, MLFLOW: self.mlflow}
        return {name: project for name, project in named.items() if project is not None}


def check_metrics(spec: MetricsSpec, engine: str) -> Iterator[str]:
    """Yield each problem with `[metrics]` in a job with the engine `engine`."""
    for name, project in spec.trackers.items():
        if engine == "script":
            yield (
                f"metrics.{name} = {format_value(project)}: is only for the built-in engines; "
                "leave "
                f'it out of an engine = "script" job, and let your program log to {name} '
                "itself"
            )
        elif not project.strip() or not project.isprintable():
            yield (
                f"metrics.{name} = {format_value(project)}: must be a name of printable characters"
            )
    if spec.wandb is not None and engine != "script":
        yield from _check_project(spec.wandb)


def _check_project(named: str) -> Iterator[str]:
    """Yield each problem with the name of a wandb project.

    The rules are the same as in wandb's settings.py.
    """
    entity, slash, project = named.rpartition("/")
    if "/" in entity or (slash and not (entity and project)):
        yield f"metrics.wandb = {format_value(named)}: must be a project, or entity/project"
    elif len(project) > _LONGEST_PROJECT or not _NOT_IN_PROJECTS.isdisjoint(named):
        yield (
            f"metrics.wandb = {format_value(named)}: a project must have at most "
            f"{_LONGEST_PROJECT} characters, without any of {' '.join(sorted(_NOT_IN_PROJECTS))}"
        )
