"""What the nodes of a job must have in common, and where they meet."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile, BadRequest
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.tables.spec import JobSpec
from zerotools.runs import checkpoint_dirs
from zerotoolsd.trainer.rank.group import WorldGroup
from zerotoolsd.trainer.rank.meeting import MeetingPlace
from zerotoolsd.trainer.rank.settings import stop_reason

SHARED = ("engine", "device", "seed", "output_dir", "train", "fp16", "zero", "lora", "deepspeed")
"""Keys and tables of a job that all nodes must share. Paths of the model and of the data may be of
each node: what is read there is compared later."""


def meeting_of(
    spec: JobSpec, run_dir: Path, environment: Mapping[str, str] = os.environ
) -> MeetingPlace | None:
    """Where the nodes of `spec` meet; None: there is one node."""
    rendezvous = spec.rendezvous
    if rendezvous.nodes == 1 or rendezvous.place is None:
        return None
    tree = job_to_dict(spec)
    return MeetingPlace(
        *rendezvous.place,
        nodes=rendezvous.nodes,
        node=rendezvous.node_rank,
        seconds=rendezvous.timeout_seconds,
        token=environment["ZEROTOOLS_TOKEN"],
        directory=Path(spec.output_dir or ""),
        job={name: _digest(tree.get(name)) for name in SHARED},
        is_stopped=lambda: stop_reason(run_dir) is not None,
    )


def is_over(spec: JobSpec) -> bool:
    """Whether the run has its last checkpoint. A node that went after that would wait for others
    which have ended."""
    steps, directory = spec.train.steps, Path(spec.output_dir or "")
    if steps is None:
        return False
    last = directory / checkpoint_dirs.directory_name(steps)
    try:
        checkpoint_dirs.check(last, digests=False)
        return checkpoint_dirs.read_record(last).step == steps
    except (BadFile, OSError):
        return False


def check_same_model(model: Any, group: WorldGroup) -> None:
    """
    Raises:
        BadRequest: the nodes have other models.
    """
    if group.rank.nodes == 1:
        return
    shapes = [(name, tuple(tensor.shape)) for name, tensor in model.named_parameters()]
    count = sum(tensor.numel() for tensor in model.parameters())
    everywhere = group.gathered((_digest(shapes), count))
    for number, found in enumerate(everywhere):
        if found != everywhere[0]:
            node = number // group.rank.node_ranks
            raise BadRequest(
                f"[model]: node {node} has another model than node 0, of {found[1]:,} parameters "
                f"where that has {everywhere[0][1]:,}; give all nodes the same model.config or "
                "model.path"
            )


def check_seen(path: Path | None, group: WorldGroup) -> None:
    """
    Raises:
        BadRequest: a node does not see the checkpoint that node 0 has chosen.
    """
    if group.rank.nodes == 1 or path is None:
        return
    seen = group.gathered(path.is_dir() or path.is_file())
    blind = [number for number, sees in enumerate(seen) if not sees]
    if blind:
        raise BadRequest(
            f"the run goes on from {path}, which node {blind[0] // group.rank.node_ranks} does not "
            "see; put it where all nodes do"
        )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
