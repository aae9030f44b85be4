"""Where programs report to, as keys of `[metrics]`."""

from __future__ import annotations

import pytest

from tests.jobs.imports.recipes.told import key, of_line, rows

LINE = "python run_clm.py --model_name_or_path m --train_file t.txt --block_size 8 --output_dir o"


def test_report_to_names_the_trainers_projects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    found = of_line(f"{LINE} --report_to wandb mlflow tensorboard")
    assert key(found, "metrics.wandb") == "mine"
    assert key(found, "metrics.mlflow") == "Default"
    assert found.spec is not None
    assert found.spec.metrics.trackers == {"wandb": "mine", "mlflow": "Default"}


def test_a_project_that_is_said_goes_first() -> None:
    found = of_line(f"{LINE} --report_to wandb --wandb_project p --wandb_entity team")
    assert key(found, "metrics.wandb") == "team/p"


def test_a_project_alone_is_axolotls_way() -> None:
    assert key(of_line(f"{LINE} --wandb_project p"), "metrics.wandb") == "p"
    assert key(of_line(f"{LINE} --mlflow_experiment_name e"), "metrics.mlflow") == "e"


@pytest.mark.parametrize("nowhere", ["none", "tensorboard", "swanlab"])
def test_what_a_job_has_not_is_ignored(nowhere: str) -> None:
    found = of_line(f"{LINE} --report_to {nowhere} --wandb_project p")
    assert key(found, "metrics.wandb") is None
    ignored = rows(found, "ignored")
    assert ignored["--wandb_project"] == "wandb is not reported to"
    assert ignored["--report_to"].startswith("every step is recorded")
