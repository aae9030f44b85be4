"""Coordinates the nodes of a job. Lets the nodes find each other. Checks that all nodes have the
same model, and that all nodes see the checkpoint from which the run continues. Shares the permanent
failure of one node, so that all nodes end with the same reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile, BadRequest
from zerotools.jobs.jobfile.parse import shared_keys
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs import find_job_checkpoints
from zerotoolsd.trainer.engine.learning_rate import with_steps
from zerotoolsd.trainer.rank.process_group import WorldGroup
from zerotoolsd.trainer.rank.rank_errors import (
    EXIT_BAD_CHECKPOINT,
    EXIT_BAD_JOB,
    exit_code,
    one_line,
)
from zerotoolsd.trainer.rank.rank_settings import stop_reason
from zerotoolsd.trainer.rank.rendezvous_of_nodes import FAILED, MeetingPlace

_UNLIKE = ("_name_or_path", "transformers_version", "_commit_hash")
"""Keys of a model's config that may differ between machines."""


def rendezvous_of(
    spec: JobSpec, run_dir: Path, environment: Mapping[str, str] = os.environ
) -> MeetingPlace | None:
    """Return the rendezvous of the job `spec`: its address, its timeout, and the data that
    identifies this node.

    Returns None for a job on one node.
    """
    rendezvous = spec.rendezvous
    if rendezvous.nodes == 1 or rendezvous.host_and_port is None:
        return None
    return MeetingPlace(
        *rendezvous.host_and_port,
        nodes=rendezvous.nodes,
        node=rendezvous.node_rank,
        seconds=rendezvous.timeout_seconds,
        token=environment["ZEROTOOLS_TOKEN"],
        directory=Path(spec.output_dir or ""),
        job={name: _digest(value) for name, value in shared_keys(spec).items()},
        is_stopped=lambda: stop_reason(run_dir) is not None,
    )


def is_finished(spec: JobSpec) -> bool:
    """Return whether the checkpoint of the run's last step exists.

    If it exists, the other nodes have already ended, and a node that starts now would wait for them
    in vain.
    """
    try:
        newest = next(
            iter(find_job_checkpoints.list_checkpoints(Path(spec.output_dir or ""))), None
        )
        record = (
            None
            if newest is None
            else find_job_checkpoints.verify_checkpoint_files(newest, digests=False)
        )
    except (BadFile, OSError):
        return False
    if record is None:
        return False
    if spec.train.steps is None:  # epochs: of the sequences that the run had
        sequences = None if record.data is None else record.data.sequences
        if sequences is None:
            return False
        return record.step >= with_steps(spec, sequences, record).train.total_steps
    return record.step >= spec.train.steps


def check_same_model(model: Any, config: Any, group: WorldGroup) -> None:
    """Check that all nodes have the same model and config. All ranks call it together.

    Raises:
        BadRequest: the models differ.
    """
    if group.rank.nodes == 1:
        return
    shapes = [(name, tuple(tensor.shape)) for name, tensor in model.named_parameters()]
    count = sum(tensor.numel() for tensor in model.parameters())
    told = {k: v for k, v in config.to_dict().items() if k not in _UNLIKE}
    own = (_digest(shapes), {name: repr(value) for name, value in told.items()}, count)
    everywhere = group.gathered(own)
    first = everywhere[0]
    for number, found in enumerate(everywhere):
        node = number // group.rank.node_ranks
        if found[0] != first[0]:
            raise BadRequest(
                f"[model]: node {node} has a different model than node 0: {found[2]:,} parameters "
                f"instead of {first[2]:,}; give all nodes the same model.config or model.path"
            )
        differing = [
            name for name in first[1] | found[1] if first[1].get(name) != found[1].get(name)
        ]
        if differing:
            raise BadRequest(
                f"[model]: the model of node {node} has a different config than the model of node "
                "0: "
                f"{', '.join(differing[:4])} differ; give all nodes the same model.config or "
                "model.path"
            )


def check_checkpoint_visible(path: Path | None, group: WorldGroup) -> None:
    """Check that all nodes see the checkpoint at `path`. All ranks call it together.

    Raises:
        BadRequest: a node does not see the checkpoint that node 0 has chosen.
    """
    if group.rank.nodes == 1 or path is None:
        return
    seen = group.gathered(path.is_dir() or path.is_file())
    blind = [number for number, sees in enumerate(seen) if not sees]
    if blind:
        raise BadRequest(
            f"the run continues from {path}, which node {blind[0] // group.rank.node_ranks} "
            "does not see; put it into a directory that all nodes see"
        )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


LOOK_SECONDS = 3.0
"""Seconds to wait for the file with the reason of a failed node. A failed node writes this file
before its connections close.
"""
_PAUSE_SECONDS = 0.1
_LARGEST = 1 << 16


@contextmanager
def share_failures(directory: Path, group: WorldGroup) -> Iterator[None]:
    """Return a context manager that shares permanent failures between the nodes.

    The nodes share `directory`. If the body fails permanently on a node (a mistake in the job, or a
    damaged checkpoint), this node writes the reason to a file in `directory`. The name of the file
    contains the token of the rendezvous. The other nodes only see that their connections are
    closed. They then read this file, and end with the same reason.

    Raises:
        BadRequest: another node failed permanently. The message is its reason.
    """
    if group.rank.nodes == 1:
        yield
        return
    note = directory / f"{FAILED}{group.meeting}"
    try:
        yield
    except BaseException as error:  # raised again, or replaced by another node's sentence
        if exit_code(error) in (EXIT_BAD_JOB, EXIT_BAD_CHECKPOINT):
            _write(note, f"node {group.rank.node}: {one_line(error)}")
        elif isinstance(error, RuntimeError) and (told := _read(note)) is not None:
            raise BadRequest(told) from error
        raise


def _write(note: Path, text: str) -> None:
    with suppress(OSError), note.open("x", encoding="utf-8") as file:  # the first one counts
        file.write(json.dumps(text[:_LARGEST]))


def _read(note: Path) -> str | None:
    until = time.monotonic() + LOOK_SECONDS
    while time.monotonic() < until:
        with suppress(OSError, ValueError):
            found = json.loads(note.read_text("utf-8")[: 2 * _LARGEST])
            return found if isinstance(found, str) else None
        time.sleep(_PAUSE_SECONDS)
    return None
