"""`[slurm]` of the job file: the resources that a job with `backend = "slurm"` requests from a
cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.binding.declaration import key
from zerotools.jobs.binding.durations import seconds_of
from zerotools.jobs.jobfile_tables.rendezvous import MOST_NODES

OURS = (
    *("array", "begin", "chdir", "clusters", "comment", "dependency", "error", "export", "gres"),
    "hold",
    *("job-name", "nodes", "no-requeue", "ntasks", "ntasks-per-node", "open-mode", "output"),
    *("parsable", "requeue", "signal", "wait", "wrap"),
)
"""Options of sbatch that zerotools sets itself, so `slurm.options` must not have them."""
_SHORT = {
    "a": "array",
    "b": "begin",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "J": "job-name",
}
_SHORT |= {"M": "clusters"}
_SHORT |= {"H": "hold", "N": "nodes", "n": "ntasks", "o": "output", "W": "wait"}


@dataclass(frozen=True, kw_only=True)
class SlurmSpec:
    """`[slurm]`: the resources that a job with `backend = "slurm"` requests from the cluster; see
    [train under Slurm](../how-to/slurm.md). Missing keys get the cluster's defaults.
    """

    partition: str | None = key(
        "The partition, or several with commas; `--partition`.",
        default=None,
        stored_default=None,
        imported=False,
    )
    account: str | None = key(
        "The account; `--account`.", default=None, stored_default=None, imported=False
    )
    qos: str | None = key(
        "The quality of service; `--qos`.", default=None, stored_default=None, imported=False
    )
    constraint: str | None = key(
        'Features that nodes must have, such as `"h100"`; `--constraint`.',
        default=None,
        stored_default=None,
        imported=False,
    )
    reservation: str | None = key(
        "A reservation; `--reservation`.", default=None, stored_default=None, imported=False
    )
    time: int | str | None = key(
        'How long one start may run: seconds, or text such as `"8h"`; `--time`. Before this time '
        "ends, the job saves, and Slurm queues it again. Default: `time_limit` plus `warning`, or "
        "the limit of the partition.",
        default=None,
        stored_default=None,
        imported=False,
    )
    nodes: int = key(
        "The number of nodes, each with as many GPUs or ranks as in `gpus` or `ranks`; `--nodes`.",
        default=1,
        stored_default=1,
        minimum=1,
        maximum=MOST_NODES,
        imported=False,
    )
    max_nodes: int | None = key(
        "The largest number of nodes. At each start Slurm chooses a number from `nodes` to "
        "`max_nodes`. Default: `nodes`.",
        default=None,
        stored_default=None,
        minimum=1,
        maximum=MOST_NODES,
        imported=False,
    )
    gpu_type: str | None = key(
        'The kind of GPU, by Slurm\'s name: `"a100"` makes `--gres=gpu:a100:8` for 8 GPUs.',
        default=None,
        stored_default=None,
        imported=False,
    )
    cpus_per_rank: int | None = key(
        "Processors of each rank; `--cpus-per-task` is this number times the ranks of a node.",
        default=None,
        stored_default=None,
        minimum=1,
        imported=False,
    )
    memory: str | None = key(
        'Host memory of each node, in sbatch\'s form: `"200G"`, `"0"` for all; `--mem`.',
        default=None,
        stored_default=None,
        imported=False,
    )
    requeue: bool = key(
        "Whether Slurm may queue the job again: after preemption, the loss of a node, or the "
        "end of its time. It continues from its newest checkpoint.",
        default=True,
        stored_default=True,
        imported=False,
    )
    warning: int | str = key(
        "How long before the end of its time the job gets the request to save: seconds, or text.",
        default="120s",
        stored_default="120s",
        imported=False,
    )
    options: tuple[str, ...] = key(
        'More options of sbatch, passed unchanged: `["--exclusive", '
        '"--mail-user=me@example.org"]`.',
        default=(),
        stored_default=(),
        imported=False,
    )

    @property
    def node_counts(self) -> Sequence[int]:
        """The numbers of nodes that Slurm may give to the job, in ascending order."""
        return range(self.nodes, max(self.nodes, self.max_nodes or 0) + 1)

    @property
    def time_seconds(self) -> float | None:
        """The value of `time` in seconds; None if it is not set."""
        return None if self.time is None else seconds_of(self.time)

    @property
    def warning_seconds(self) -> int:
        """The value of `warning` in whole seconds."""
        return round(seconds_of(self.warning))


def check_slurm(slurm: SlurmSpec) -> Iterator[str]:
    """Yield the problems in `[slurm]` that do not depend on other tables."""
    for name in ("partition", "account", "qos", "constraint", "reservation", "gpu_type", "memory"):
        value = getattr(slurm, name)
        if value is not None and (not value or not value.isprintable() or value != value.strip()):
            yield (
                f"slurm.{name} = {format_value(value)}: must be printable text, without blanks "
                "around it"
            )
    for name in ("time", "warning"):
        value = getattr(slurm, name)
        try:
            if value is not None and seconds_of(value) <= 0:
                yield f"slurm.{name} = {format_value(value)}: must be more than 0"
        except ValueError as error:
            yield f"slurm.{name} = {format_value(value)}: {error}"
    yield from _check_time(slurm)
    if slurm.max_nodes is not None and slurm.max_nodes < slurm.nodes:
        yield (
            f"slurm.max_nodes = {slurm.max_nodes}: is less than slurm.nodes = {slurm.nodes}; "
            "exchange them"
        )
    for option in slurm.options:
        yield from _check_option(option)


def _check_time(slurm: SlurmSpec) -> Iterator[str]:
    try:
        seconds, warning = slurm.time_seconds, slurm.warning_seconds
    except ValueError:
        return  # reported already
    if seconds is not None and 0 < seconds <= warning:
        yield (
            f"slurm.time = {format_value(slurm.time)}: each start would have to save at once, "
            "because "
            f"slurm.warning = {format_value(slurm.warning)} is not shorter; set a longer time, or "
            "a "
            "shorter warning"
        )


def _check_option(option: str) -> Iterator[str]:
    name = option.removeprefix("--").partition("=")[0]
    if not option.startswith("--"):
        name = _SHORT.get(option[1:2], "")
    if not option.startswith("-") or not option.isprintable() or option.strip("-") == "":
        yield (
            f"slurm.options: {format_value(option)} is not an option; write each as one text, such "
            "as "
            '"--exclude=n7"'
        )
        return
    # Long options may be shortened: --arr is --array.
    ours = next((each for each in OURS if name and each.startswith(name)), None)
    if ours is not None:
        yield (
            f"slurm.options: {format_value(option)}: zerotools gives --{ours} itself; leave it out"
        )
