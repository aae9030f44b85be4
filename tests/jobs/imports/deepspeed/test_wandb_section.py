"""DeepSpeed's own logging to wandb."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.jobs.imports.jobs import JOB, a_job, ds_text, outcomes, said

A_JOB = a_job(JOB + "batch_size = 16\nmicro_batch_size = 4\nlearning_rate = 1e-4\n")


@pytest.mark.parametrize(
    ("section", "project"),
    [
        ({"enabled": True}, "deepspeed"),
        ({"enabled": True, "project": "sheep"}, "sheep"),
        ({"enabled": "true", "project": "sheep", "team": "herd", "group": "a"}, "herd/sheep"),
        ({"enabled": True, "team": "herd"}, "herd/deepspeed"),
        ({"enabled": True, "project": "", "team": None, "group": None}, "deepspeed"),
        ({"enabled": False, "project": "sheep"}, None),
        ({"project": "sheep"}, None),
    ],
)
def test_the_project_is_the_jobs(section: dict[str, Any], project: str | None) -> None:
    imported = ds_text(json.dumps({"wandb": section}), A_JOB)
    assert imported.problem is None
    assert imported.tree.get("metrics", {}).get("wandb") == project
    rows = {key: value for key, value in outcomes(imported).items() if "wandb" in key}
    assert rows.keys() == {f"wandb.{name}" for name in section}
    assert ("mapped" in rows.values()) == (project is not None)


def test_another_project_of_the_job_is_told() -> None:
    job = a_job(JOB + 'batch_size = 8\n[metrics]\nwandb = "goats"\n')
    section = {"enabled": True, "project": "sheep"}
    told = said(ds_text(json.dumps({"wandb": section}), job))
    assert 'job.toml metrics.wandb says "goats"' in told
    assert 'wandb.project says "sheep"; make them agree' in told
