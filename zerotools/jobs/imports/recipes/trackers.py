"""The trackers of a program: `report_to` and its options, as keys of `[metrics]`.

transformers 5.23 integrations/integration_utils.py: `WandbCallback`, `MLflowCallback`. axolotl
reports to wandb if `wandb_project` is set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from zerotools.jobs.imports.reading.report import KeyOutcome
from zerotools.jobs.imports.reading.typed_keys import ConfigValue
from zerotools.jobs.imports.recipes.argument_values import ArgumentReading
from zerotools.jobs.launcher_keys.trainer_keys import TRACKERS
from zerotools.jobs.tables.metrics import WANDB

_RECORDED = "every step is recorded: zerotools logs, zerotools show"


def read_trackers(reading: ArgumentReading, environment: Mapping[str, str] = os.environ) -> None:
    """Map the trackers that a job has too; all others are ignored, with the reason."""
    config = reading.config
    asked, entity = config.take("report_to"), config.take("wandb_entity")
    named = _names(asked)
    owner = f"{entity.value}/" if entity is not None and entity.value else ""
    for name, (argument, variable, default) in TRACKERS.items():
        key, before = f"metrics.{name}", owner if name == WANDB else ""
        project = config.take(argument)
        if project is not None and project.value and (asked is None or name in named):
            config.map(project, key, before + str(project.value))
            continue
        if project is not None:
            config.row(KeyOutcome.IGNORED, project, None, f"{name} is not reported to")
        if asked is not None and name in named:
            value = before + (environment.get(variable) or default)
            config.map(asked, key, value, f"by {variable}, or the Trainer's default")
    if asked is not None and named.isdisjoint(TRACKERS):
        config.row(KeyOutcome.IGNORED, asked, None, _RECORDED)
    if entity is not None:
        config.row(KeyOutcome.IGNORED, entity, None, "is part of metrics.wandb")


def _names(asked: ConfigValue | None) -> set[str]:
    if asked is None or not asked.value:
        return set()
    values = asked.value if isinstance(asked.value, list) else str(asked.value).split(",")
    return {str(value).strip().lower() for value in values}
