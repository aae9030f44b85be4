"""Who this rank is and what it has to do: its environment, the run directory, the job."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.stored import read_stored
from zerotools.jobs.tables.elastic import at_size
from zerotools.jobs.tables.spec import JobSpec
from zerotools.runs.needed import DIRECTORY, directory_of_user

SPEC = "spec.json"
STOP = "stop"
SAVED_STEP = "ZEROTOOLS_SAVED_STEP"


@dataclass(frozen=True)
class Rank:
    """One process of the job; `index` counts from 0 to `world_size` - 1, `local` on this machine,
    where it picks the GPU. `node` is which of the `nodes` machines that is. Ranks that follow one
    another, `share_ranks` of them, take the same share of a step's sequences; of these,
    `tensor_ranks` that follow one another compute the same values of it."""

    index: int
    local: int
    world_size: int
    node: int = 0
    nodes: int = 1
    share_ranks: int = 1
    tensor_ranks: int = 1

    def in_job(self, spec: JobSpec) -> Rank:
        """The same, among the ranks that take one share of the steps of `spec`."""
        zero = spec.zero
        return replace(self, share_ranks=zero.share_ranks, tensor_ranks=zero.tensor_ranks)

    @property
    def share(self) -> int:
        """Which of the `shares` of a step's sequences it takes."""
        return self.index // self.share_ranks

    @property
    def shares(self) -> int:
        """Into how many parts a step's sequences are divided."""
        return self.world_size // self.share_ranks

    @property
    def leads_share(self) -> bool:
        """Whether it is the first of the ranks that take its share."""
        return self.index % self.share_ranks == 0

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which decides and commits."""
        return self.index == 0

    @property
    def leads_node(self) -> bool:
        """Whether this is the first rank of its node, which reports to its daemon."""
        return self.local == 0

    @property
    def node_ranks(self) -> int:
        """Ranks of each node."""
        return self.world_size // self.nodes


def rank_from(environment: Mapping[str, str] = os.environ) -> Rank:
    """The rank that the supervisor's variables describe; one rank alone without them."""
    return Rank(
        index=int(environment.get("RANK", "0")),
        local=int(environment.get("LOCAL_RANK", "0")),
        world_size=int(environment.get("WORLD_SIZE", "1")),
        node=int(environment.get("GROUP_RANK", "0")),
        nodes=int(environment.get("GROUP_WORLD_SIZE", "1")),
    )


def saved_before(environment: Mapping[str, str] = os.environ) -> int:
    """The newest step that an earlier attempt of the job saved; 0 if none did."""
    return int(environment.get(SAVED_STEP, "0"))


def read_spec(run_dir: Path) -> JobSpec:
    """The job in `run_dir` as it runs with the ranks that there are, with `output_dir` filled in.

    Raises:
        BadRequest: it is not a job, or one that this trainer does not run.
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
    """Where the daemon says which checkpoints other jobs need: those of this user, where it runs
    the jobs of several."""
    needed = run_dir / ".." / ".." / ".." / DIRECTORY
    own = needed / directory_of_user(os.geteuid())
    return own if own.is_dir() else needed


def stop_reason(run_dir: Path) -> str | None:
    """Why the supervisor asks the ranks to stop; None if it does not."""
    try:
        return (run_dir / STOP).read_text("utf-8", errors="replace").strip() or "asked"
    except FileNotFoundError:
        return None
