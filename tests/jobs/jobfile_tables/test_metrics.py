"""`[metrics]`: what is refused, and what is taken."""

from __future__ import annotations

from typing import Any

import pytest

from zerotools.jobs.jobfile_tables.metrics import MetricsSpec, check_metrics


@pytest.mark.parametrize(
    ("keys", "engine", "sentence"),
    [
        ({"wandb": "a/b/c"}, "torch", 'metrics.wandb = "a/b/c": must be a project, or entity/'),
        ({"wandb": "team/"}, "torch", "must be a project, or entity/project"),
        ({"wandb": "a:b"}, "torch", "at most 128 characters, without any of"),
        ({"wandb": "p" * 129}, "torch", "at most 128 characters"),
        ({"wandb": " "}, "torch", "must be a name of printable characters"),
        ({"mlflow": "a\nb"}, "deepspeed", "must be a name of printable characters"),
        ({"mlflow": "e"}, "script", "let your program log to mlflow itself"),
    ],
)
def test_what_is_refused(keys: dict[str, Any], engine: str, sentence: str) -> None:
    assert sentence in "; ".join(check_metrics(MetricsSpec(**keys), engine))


@pytest.mark.parametrize("keys", [{}, {"wandb": "p"}, {"wandb": "team/p", "mlflow": "a/b: c"}])
def test_what_is_taken(keys: dict[str, Any]) -> None:
    spec = MetricsSpec(**keys)
    assert list(check_metrics(spec, "torch")) == []
    assert spec.trackers == keys
