"""A look at the files that a job needs refuses it at submit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.jobs.slurm.fake_programs import programs
from zerotools.core.errors import Unsupported
from zerotools.jobs.jobfile.parse import job_from_dict, job_to_dict
from zerotoolsd.service.admission.memory_check import MachineMemory
from zerotoolsd.service.admission.run_file_checks import survey_job_files


def test_a_job_for_slurm_is_refused_where_there_is_no_sbatch(tmp_path: Path) -> None:
    tree = {
        "engine": "script",
        "device": "cpu",
        "backend": "slurm",
        "script": {"command": ["/bin/true"], "directory": str(tmp_path)},
        "env": {"PATH": str(tmp_path / "bin")},
    }
    spec = job_from_dict(tree, source="job")
    text = json.dumps(job_to_dict(spec))
    with pytest.raises(Unsupported, match="sbatch is not in PATH"):
        survey_job_files(spec, text, MachineMemory(None, 2**40))
    programs(tmp_path)
    assert survey_job_files(spec, text, MachineMemory(None, 2**40))["place"] is None
