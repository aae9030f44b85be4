"""Reads the number of this rank and its job from environment variables and the run directory, and
handles stop requests.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.stored_job import read_stored
from zerotools.jobs.jobfile_tables.elastic_world_sizes import at_size
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs.deletable_checkpoints import DIRECTORY, directory_of_user

SPEC = "spec.json"
STOP = "stop"
SAVED_STEP = "ZEROTOOLS_SAVED_STEP"


@dataclass(frozen=True)
class Rank:
    """One process of a job.

    Attributes:
        index: the number of the process, from 0 to `world_size` - 1.
        local: the number of the process on this machine, which selects the GPU.
        node: the number of this machine among `nodes` machines.
        same_data_ranks: the number of consecutive ranks that compute the same sequences together
            (sequence ranks times tensor ranks).
        tensor_ranks: the number of consecutive ranks that split every layer between them; these
            ranks are among the `same_data_ranks`.
    """

    index: int
    local: int
    world_size: int
    node: int = 0
    nodes: int = 1
    same_data_ranks: int = 1
    tensor_ranks: int = 1

    def in_job(self, spec: JobSpec) -> Rank:
        """Return a copy of this rank with the sequence and tensor ranks that the job `spec` sets in
        `[zero]`.
        """
        zero = spec.zero
        return replace(self, same_data_ranks=zero.same_data_ranks, tensor_ranks=zero.tensor_ranks)

    @property
    def data_rank(self) -> int:
        """The data-parallel rank: which part of a step's sequences this rank computes, counted from
        0.
        """
        return self.index // self.same_data_ranks

    @property
    def data_ranks(self) -> int:
        """The data-parallel size: the number of parts into which a step's sequences are divided."""
        return self.world_size // self.same_data_ranks

    @property
    def leads_same_data(self) -> bool:
        """True if this is the first of the ranks that compute the same sequences."""
        return self.index % self.same_data_ranks == 0

    @property
    def leads(self) -> bool:
        """True if this is rank 0, which makes decisions and commits checkpoints."""
        return self.index == 0

    @property
    def leads_node(self) -> bool:
        """True if this is the first rank of its node, which reports to the node's daemon."""
        return self.local == 0

    @property
    def node_ranks(self) -> int:
        """The number of ranks on each node."""
        return self.world_size // self.nodes


def rank_from(environment: Mapping[str, str] = os.environ) -> Rank:
    """Return the rank that the supervisor's environment variables describe.

    Without these variables, the rank is the only rank of its job.
    """
    return Rank(
        index=int(environment.get("RANK", "0")),
        local=int(environment.get("LOCAL_RANK", "0")),
        world_size=int(environment.get("WORLD_SIZE", "1")),
        node=int(environment.get("GROUP_RANK", "0")),
        nodes=int(environment.get("GROUP_WORLD_SIZE", "1")),
    )


def saved_before(environment: Mapping[str, str] = os.environ) -> int:
    """Return the newest step that an earlier attempt of the job saved; 0 if no attempt saved
    one.
    """
    return int(environment.get(SAVED_STEP, "0"))


def read_spec(run_dir: Path) -> JobSpec:
    """Read the job file in `run_dir`, and return the job, adapted to the number of ranks.

    Raises:
        BadRequest: the file is not a job, or this trainer does not support the job.
    """
    path = run_dir / SPEC
    # The rules were checked when the job was submitted, maybe by an older version's.
    spec, problems = read_stored(json.loads(path.read_text("utf-8")))
    if spec is None or problems:
        raise BadRequest(f"{path}: {'; '.join(problems)}")
    if spec.engine == "script":
        raise BadRequest(f"{path}: this trainer does not run engine {spec.engine}")
    if spec.output_dir is None:
        raise BadRequest(f"{path} has no output_dir")
    return at_size(spec, rank_from().node_ranks)


def needed_by_others(run_dir: Path) -> Path:
    """Return the directory in which the daemon lists the checkpoints that other jobs need.

    If the daemon runs jobs of several users, each user has such a directory; the directory of this
    user is returned.
    """
    needed = run_dir / ".." / ".." / ".." / DIRECTORY
    own = needed / directory_of_user(os.geteuid())
    return own if own.is_dir() else needed


def stop_reason(run_dir: Path) -> str | None:
    """Return the reason why the supervisor asks the ranks to stop; None if it does not ask."""
    try:
        return (run_dir / STOP).read_text("utf-8", errors="replace").strip() or "asked"
    except FileNotFoundError:
        return None


@dataclass
class StopRequest:
    """Detects a request to stop.

    A request is a file that the supervisor writes, or the signal SIGTERM. The first rank of each
    node looks for the file. Any rank may get SIGTERM. The ranks tell each other about the request
    when they exchange the loss of a step.
    """

    run_dir: Path
    rank: Rank
    _signalled: bool = False

    def listen(self) -> None:
        """Handle SIGTERM as a request to stop from now on. Call it in the main thread."""
        signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, *_: object) -> None:
        self._signalled = True

    def is_requested(self) -> bool:
        """Return whether this rank was asked to stop."""
        return self._signalled or (self.rank.leads_node and stop_reason(self.run_dir) is not None)

    def own_reason(self) -> str | None:
        """Return the reason why this rank was asked to stop; None if it was not asked."""
        return self.reason() if self.is_requested() else None

    def reason(self) -> str:
        """Return the reason for the stop in a few words, as far as this rank knows the reason."""
        return stop_reason(self.run_dir) or ("SIGTERM" if self._signalled else "asked")
