from __future__ import annotations

import pytest

from zerotools.cli.options.slurm_options import NO_SLURM, SlurmOptions
from zerotools.core.errors import BadRequest


def test_options_change_the_job_file_of_a_job_for_slurm() -> None:
    given = SlurmOptions(table={"partition": "h100"}, gpus_per_node=4)
    tree = {"backend": "slurm", "gpus": 2, "slurm": {"partition": "a100", "time": "8h"}}
    changed = {"gpus": 4, "slurm": {"partition": "h100", "time": "8h"}}
    assert given.applied(tree) == {**tree, **changed}
    assert NO_SLURM.applied({"gpus": 2}) == {"gpus": 2}
    assert SlurmOptions(asked=True).applied({"gpus": 2}) == {"gpus": 2, "backend": "slurm"}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (SlurmOptions(table={"options": ["--exclude=n7"]}), "--sbatch"),
        (SlurmOptions(gpus_per_node=2), "--gpus-per-node"),
        (SlurmOptions(table={"time": "8h"}), "--time"),
    ],
)
def test_they_are_refused_of_a_job_that_is_not_for_slurm(given: SlurmOptions, name: str) -> None:
    with pytest.raises(BadRequest, match=f"{name} needs --slurm"):
        given.applied({"backend": "local", "gpus": 2})
