"""Options of submit: what the job requests from Slurm, arrays of jobs, and conditions to wait for.

`edit`, `retry` and `resume` have some of them.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import click

from zerotools.cli.options.click_options import CLUSTER, JOB, WHEN, given_as, option
from zerotools.core.errors import BadRequest
from zerotools.jobs.binding.durations import seconds_of
from zerotools.jobs.job_arrays import MOST_MEMBERS, count_of, values_of
from zerotools.jobs.jobfile_tables.spec import SLURM
from zerotools.jobs.priority_range import LEAST_PRIORITY, MOST_PRIORITY

_TEXTS = ("partition", "account", "qos", "constraint", "time")


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """Values of the options for Slurm. `table` has keys for the table `[slurm]` of the job file."""

    asked: bool = False
    table: Mapping[str, Any] = field(default_factory=dict)
    gpus_per_node: int | None = None
    no_daemon: bool = False

    @property
    def nodes(self) -> int:
        """The number of requested nodes."""
        return int(self.table.get("nodes", 1))

    def applied(self, tree: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the job file `tree` with these settings added.

        Raises:
            BadRequest: options for Slurm were given, and the job is not for Slurm.
        """
        if not self.asked and tree.get("backend") != SLURM:
            first = next(iter(self.table), None if self.gpus_per_node is None else "gpus_per_node")
            if first is not None:
                name = {"options": "sbatch"}.get(first, first.replace("_", "-"))
                raise BadRequest(f"--{name} needs --slurm; give both")
            return tree
        own = tree.get("slurm")
        table = {**(own if isinstance(own, Mapping) else {}), **self.table}
        found = {**tree, "backend": SLURM, **({"slurm": table} if table else {})}
        if self.gpus_per_node is not None:
            found["ranks" if tree.get("device") == "cpu" else "gpus"] = self.gpus_per_node
        return found


NO_SLURM = SlurmOptions()


def nodes_option(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorator that adds `--nodes N[-MAX]`. `nodes_of` parses its value."""
    return option("--nodes", group=CLUSTER, metavar="N[-MAX]", help=help)


def nodes_of(text: str) -> dict[str, int]:
    """Return the keys of `[slurm]` for a number of nodes such as `2` or `2-4`. Raises
    BadRequest.
    """
    found = re.fullmatch(r"([1-9][0-9]{0,4})(?:-([1-9][0-9]{0,4}))?", text)
    if found is None:
        raise BadRequest(f"--nodes {text}: is not a number of nodes; write 2, or 2-4")
    return {"nodes": int(found[1]), "max_nodes": int(found[2] or found[1])}


def slurm_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for Slurm to a command. The command gets their values as the parameter
    `slurm`, a SlurmOptions.
    """

    @option(
        "--slurm",
        group=CLUSTER,
        is_flag=True,
        help='Queue the jobs in Slurm, as backend = "slurm" in the job file does.',
    )
    @option("--partition", group=CLUSTER, metavar="NAME", help="Partition.")
    @option("--account", group=CLUSTER, metavar="NAME", help="Account.")
    @option("--qos", group=CLUSTER, metavar="NAME", help="Quality of service.")
    @option("--constraint", group=CLUSTER, metavar="TEXT", help="Features that nodes must have.")
    @option(
        "--time",
        group=CLUSTER,
        metavar="SPAN",
        help="Time limit of each start, such as 8h.",
    )
    @nodes_option("Number of nodes; 2-4: Slurm chooses from 2 to 4.")
    @option(
        "--gpus-per-node",
        group=CLUSTER,
        type=click.IntRange(1),
        metavar="N",
        help="Number of GPUs of each node, or of ranks of a job on CPUs; replaces gpus of the job "
        "file.",
    )
    @option(
        "--sbatch",
        "options",
        group=CLUSTER,
        metavar="OPTION",
        multiple=True,
        help="One more option of sbatch, such as --exclude=n7; may be repeated.",
    )
    @option(
        "--no-daemon",
        group=CLUSTER,
        is_flag=True,
        help="Submit from this command, even if a daemon could submit and watch the job.",
    )
    @functools.wraps(command)
    def with_options(
        *arguments: Any,
        slurm: bool,
        nodes: str | None,
        gpus_per_node: int | None,
        options: tuple[str, ...],
        no_daemon: bool,
        **others: Any,
    ) -> Any:
        table = {name: value for name in _TEXTS if (value := others.pop(name)) is not None}
        if nodes is not None:
            table |= nodes_of(nodes)
        if options:
            table["options"] = list(options)
        chosen = SlurmOptions(
            asked=slurm, table=table, gpus_per_node=gpus_per_node, no_daemon=no_daemon
        )
        return command(*arguments, slurm=chosen, **others)

    return with_options


@dataclass(frozen=True, kw_only=True)
class ArrayOptions:
    """Values of --sweep and --array, which submit one job many times."""

    sweeps: tuple[str, ...] = ()
    count: int | None = None

    @property
    def is_given(self) -> bool:
        """True if the user gave --sweep or --array."""
        return bool(self.sweeps) or self.count is not None

    def sweep(self) -> dict[str, list[Any]]:
        """Return the values of each swept key. Raises BadRequest if a key has no values, or there
        are too many jobs.
        """
        found: dict[str, list[Any]] = {}
        for text in self.sweeps:
            key, values = values_of(text)
            if key in found:
                raise BadRequest(f"--sweep {text}: {key} is swept twice; name all its values once")
            found[key] = values
        count_of(found, self.count)
        return found


def array_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for arrays to a command. The command gets their values as the parameter
    `array`, an ArrayOptions.
    """
    sweeps = option(
        "--sweep",
        "sweeps",
        group=JOB,
        metavar="KEY=V,V,...",
        multiple=True,
        help="Queue one job for each value of the key. Several --sweep queue one job for each "
        "combination of values.",
    )
    count = option(
        "--array",
        "count",
        group=JOB,
        type=click.IntRange(1, MOST_MEMBERS),
        metavar="N",
        help="Queue N copies of each job; ZEROTOOLS_ARRAY_INDEX gives the ranks of a copy its "
        "index.",
    )
    found: Callable[..., Any] = sweeps(count(given_as("array", ArrayOptions)(command)))
    return found


CONDITIONS = ("ok", "any")
_TIME_OF_DAY = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")


@dataclass(frozen=True, kw_only=True)
class WaitingOptions:
    """Values of the options that delay the start of a job: priority, hold, time, other jobs."""

    priority: int | None = None
    hold: bool = False
    begin: str | None = None
    after: tuple[str, ...] = ()

    def terms(self, numbers_of: Callable[[str], Sequence[int]]) -> dict[str, Any]:
        """Return the conditions in the form of a request to the daemon.

        `numbers_of` returns the job numbers for a JOB in --after. Raises BadRequest.
        """
        found: dict[str, Any] = {}
        if self.priority is not None:
            found["priority"] = self.priority
        if self.hold:
            found["hold"] = True
        if self.begin is not None:
            found["begin"] = time_of(self.begin, time.time())
        if self.after:
            found["after"] = dependencies(numbers_of, self.after)
        return found


def waiting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for waiting to a command. The command gets their values as the parameter
    `waiting`, a WaitingOptions.
    """
    priority = option(
        "--priority",
        group=WHEN,
        type=click.IntRange(LEAST_PRIORITY, MOST_PRIORITY),
        metavar="N",
        help=f"{LEAST_PRIORITY} to {MOST_PRIORITY}: jobs with a higher number start first.  "
        "[default: 0]",
    )
    hold = option(
        "--hold",
        group=WHEN,
        is_flag=True,
        help="Do not start the job until zerotools release JOB.",
    )
    begin = option(
        "--begin",
        group=WHEN,
        metavar="WHEN",
        help="Start at this time or later: +2h, 22:30, 2027-01-31 or 2027-01-31T22:30.",
    )
    after = option(
        "--after",
        group=WHEN,
        metavar="JOB[:ok|any]",
        multiple=True,
        help="Start after this job has succeeded; with :any, after it has ended. May be repeated.",
    )
    found: Callable[..., Any] = priority(
        hold(begin(after(given_as("waiting", WaitingOptions)(command))))
    )
    return found


def time_of(text: str, now: float) -> float:
    """Convert the value of --begin, which is in local time, to seconds since 1970. `now` is the
    current time. Raises BadRequest.
    """
    if text.startswith("+"):
        try:
            return now + seconds_of(int(text[1:]) if text[1:].isdecimal() else text[1:])
        except ValueError as error:
            raise BadRequest(f"--begin {text}: {error}") from None
    if (match := _TIME_OF_DAY.fullmatch(text)) is not None:
        hour, minute, second = (int(part or 0) for part in match.groups())
        today = datetime.fromtimestamp(now).replace(
            hour=hour, minute=minute, second=second, microsecond=0
        )
        next_one = today if today.timestamp() > now else today + timedelta(days=1)
        return next_one.timestamp()
    try:
        found = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise BadRequest(
            f"--begin {text}: is not a time; write +2h, 22:30, 2027-01-31 or 2027-01-31T22:30"
        ) from None
    if found < now:
        shown = datetime.fromtimestamp(now).isoformat(sep=" ", timespec="seconds")
        raise BadRequest(f"--begin {text}: is in the past (it is now {shown}); give a later time")
    return found


def dependencies(
    numbers_of: Callable[[str], Sequence[int]], given: Sequence[str]
) -> list[dict[str, Any]]:
    """Convert the values of --after to dependencies on other jobs. `numbers_of` returns the job
    numbers for a JOB in a value.

    Raises:
        BadRequest: the job or the condition does not exist.
    """
    found: dict[int, dict[str, Any]] = {}
    for text in given:
        reference, colon, condition = text.rpartition(":")
        if not colon:
            reference, condition = text, CONDITIONS[0]
        elif condition not in CONDITIONS:
            if reference.isdecimal():
                raise BadRequest(
                    f"--after {text}: {condition!r} is neither ok nor any; write one of the two"
                )
            reference, condition = text, CONDITIONS[0]  # a name may have a colon
        for job_id in numbers_of(reference):
            if job_id in found and found[job_id]["condition"] != condition:
                raise BadRequest(
                    f"--after {text}: job {job_id} is named twice, as ok and as any; name it once"
                )
            found[job_id] = {"job": job_id, "condition": condition}
    return list(found.values())
