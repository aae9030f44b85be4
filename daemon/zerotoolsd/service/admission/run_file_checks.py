"""Runs all checks of a job's files in one child process, because a file system may hang."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from zerotools.jobs.jobfile_tables.spec import SLURM, JobSpec
from zerotools.jobs.preflight.tracker_login import offline_notes
from zerotools.jobs.slurm.slurm_commands import SlurmCommands
from zerotoolsd.attempts.job_environment import job_environment
from zerotoolsd.dispatch.remove_job_files import NamedPath, paths_in_job_file
from zerotoolsd.service.admission.interpreter_check import Needs, needs_from, needs_of
from zerotoolsd.service.admission.memory_check import (
    JobMemoryEstimate,
    MachineMemory,
    estimate_from_json,
    estimate_job_memory,
)
from zerotoolsd.service.admission.run_rank_checks import reads_data


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The results of the checks of a job's files when the job is submitted.

    Attributes:
        place: the job's output directory with links resolved; None: the default directory.
        named: all paths in the job file.
        needs: the requirements for the job's interpreter.
        asked: whether the job's interpreter must also run checks, for a checkpoint of another
            program or for data that the daemon cannot read.
    """

    place: str | None
    named: tuple[NamedPath, ...]
    needs: Needs | None
    asked: bool
    memory: JobMemoryEstimate | None = None
    """The estimate of the job's memory; None if it is unknown."""
    notes: tuple[str, ...] = ()
    """Remarks that are shown to the user who submits the job."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields, keyed by name, as JSON values; `survey_of` converts them back."""
        return asdict(self)


NEEDS = ("zerotoolsd.service.admission.preflight_files",)
"""Modules that `survey_job_files` imports. The process that forks the checks imports them once."""


def survey_of(tree: Mapping[str, Any]) -> Survey:
    """Return the `Survey` with the JSON values `tree` that `Survey.to_json` returned."""
    needs = tree["needs"]
    return Survey(
        place=tree["place"],
        named=tuple(NamedPath(**each) for each in tree["named"]),
        needs=None if needs is None else needs_from(needs),
        asked=tree["asked"],
        memory=estimate_from_json(tree.get("memory")),
        notes=tuple(tree.get("notes", ())),
    )


def survey_job_files(spec: JobSpec, text: str, memory: MachineMemory) -> dict[str, Any]:
    """Check the files of the job `spec` on a machine with this `memory`. Return the results as the
    JSON values of a `Survey`. `text` is the job as JSON text.

    Blocks while a file system does not respond. Raises BadRequest, which names the missing files,
    BadFile and Unsupported.
    """
    from zerotoolsd.service.admission import (
        preflight_files,  # readers of every format, for such a process alone
    )

    if spec.backend == SLURM:  # sbatch gets the job's environment
        SlurmCommands(job_environment(spec)).path_of("sbatch")
    preflight_files.check_files(spec)
    preflight_files.check_output(spec)
    return Survey(
        place=None if spec.output_dir is None else os.path.realpath(spec.output_dir),
        named=tuple(paths_in_job_file(text, spec.output_dir or "")),
        needs=needs_of(spec),
        asked=preflight_files.began_in_another_program(spec) or reads_data(spec),
        memory=estimate_job_memory(spec, memory),
        notes=tuple(offline_notes(spec.metrics, job_environment(spec))),
    ).to_json()
