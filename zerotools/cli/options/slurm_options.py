"""A job's request to Slurm, given at submit instead of in its file."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from zerotools.cli.options.grouped import CLUSTER, option
from zerotools.core.errors import BadRequest
from zerotools.jobs.tables.spec import SLURM

_TEXTS = ("partition", "account", "qos", "constraint", "time")


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """The values of one command's options: `table` are keys of `[slurm]`."""

    asked: bool = False
    table: Mapping[str, Any] = field(default_factory=dict)
    gpus_per_node: int | None = None
    no_daemon: bool = False

    @property
    def nodes(self) -> int:
        """The number of requested nodes."""
        return int(self.table.get("nodes", 1))

    def applied(self, tree: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the tree of a job file with these settings. Raises BadRequest: it is not for
        Slurm, and options for Slurm were given."""
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
    """Return the decorator that adds `--nodes N[-MAX]`, a text for `nodes_of`."""
    return option("--nodes", group=CLUSTER, metavar="N[-MAX]", help=help)


def nodes_of(text: str) -> dict[str, int]:
    """Return the keys of `[slurm]` that `2` or `2-4` mean. Raises BadRequest."""
    found = re.fullmatch(r"([1-9][0-9]{0,4})(?:-([1-9][0-9]{0,4}))?", text)
    if found is None:
        raise BadRequest(f"--nodes {text}: is not a number of nodes; write 2, or 2-4")
    return {"nodes": int(found[1]), "max_nodes": int(found[2] or found[1])}


def slurm_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets `slurm`, a SlurmOptions."""

    @option(
        "--slurm",
        group=CLUSTER,
        is_flag=True,
        help='Queue the jobs in Slurm, as backend = "slurm" of the job file.',
    )
    @option("--partition", group=CLUSTER, metavar="NAME", help="Partition.")
    @option("--account", group=CLUSTER, metavar="NAME", help="Account.")
    @option("--qos", group=CLUSTER, metavar="NAME", help="Quality of service.")
    @option("--constraint", group=CLUSTER, metavar="TEXT", help="Features that nodes must have.")
    @option(
        "--time",
        group=CLUSTER,
        metavar="SPAN",
        help="How long one start may run, such as 8h.",
    )
    @nodes_option("How many nodes; 2-4: as many as Slurm gives.")
    @option(
        "--gpus-per-node",
        group=CLUSTER,
        type=click.IntRange(1),
        metavar="N",
        help="GPUs of each node (ranks, on CPUs); as gpus of the job file.",
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
        help="Submit from here, even if a daemon would watch the job.",
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
