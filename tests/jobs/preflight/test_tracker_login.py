"""Whether a job reaches its trackers, by its environment and the files of logins."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.jobs.jobfile_tables.metrics import MetricsSpec
from zerotools.jobs.preflight.tracker_login import offline_notes, offline_reasons

WANDB = MetricsSpec(wandb="p")


def test_without_a_login_the_run_is_kept_in_files(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    (note,) = offline_notes(WANDB, home)
    assert f"WANDB_API_KEY is not set for the job, and {tmp_path}/.netrc has no login" in note
    assert "--env WANDB_API_KEY" in note
    assert offline_reasons(WANDB, {**home, "WANDB_API_KEY": "k"}) == {}
    assert offline_reasons(MetricsSpec(), home) == {}


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("machine api.wandb.ai login user password k\n", True),
        ("machine own.host login user password k\n", False),
        ("machine api.wandb.ai login user\n", False),
        ("machine", False),
        ("\xff" * 10, False),
    ],
)
def test_a_login_in_netrc(tmp_path: Path, text: str, known: bool) -> None:
    file = tmp_path / ".netrc"
    file.write_text(text, encoding="latin-1")
    file.chmod(0o600)
    assert (offline_reasons(WANDB, {"HOME": str(tmp_path)}) == {}) is known


def test_a_server_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "logins"
    file.write_text("machine own.host login user password k\n")
    file.chmod(0o600)
    environment = {"HOME": "/none", "NETRC": str(file), "WANDB_BASE_URL": "https://own.host/x"}
    assert offline_reasons(WANDB, environment) == {}


def test_what_wandbs_commands_wrote_down(tmp_path: Path) -> None:
    settings = tmp_path / ".config/wandb/settings"
    settings.parent.mkdir(parents=True)
    settings.write_text("[default]\nmode = offline\n")
    home = {"HOME": str(tmp_path), "WANDB_API_KEY": "k"}
    assert offline_reasons(WANDB, home) == {"wandb": "wandb's mode is offline"}
    settings.write_text("no section\n")
    assert offline_reasons(WANDB, home) == {}


def test_a_mode_of_the_environment(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert offline_reasons(WANDB, {**home, "WANDB_MODE": "offline", "WANDB_API_KEY": "k"})
    notes = offline_notes(MetricsSpec(wandb="p", mlflow="e"), {**home, "WANDB_MODE": "disabled"})
    assert [note.split(":")[0] for note in notes] == ["metrics.wandb", "metrics.mlflow"]
    assert "no step is logged there" in notes[0]


def test_mlflow_without_a_server() -> None:
    spec = MetricsSpec(mlflow="e")
    assert "MLFLOW_TRACKING_URI is not set" in offline_notes(spec, {})[0]
    assert offline_notes(spec, {"MLFLOW_TRACKING_URI": "http://host"}) == []
