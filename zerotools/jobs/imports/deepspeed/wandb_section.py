"""`wandb`: DeepSpeed's logging to Weights & Biases, which a job configures as `metrics.wandb`.

DeepSpeed 0.19, monitor/config.py: `enabled` switches it on, and the default of `project` is
"deepspeed". The engine deepspeed gets the section, so that DeepSpeed logs itself.
"""

from __future__ import annotations

from zerotools.jobs.imports.reading.reader import ConfigReading
from zerotools.jobs.imports.reading.report import KeyOutcome
from zerotools.jobs.imports.reading.typed_keys import ConfigValue

_ENABLED, _PROJECT, _TEAM, _GROUP = (
    "wandb.enabled",
    "wandb.project",
    "wandb.team",
    "wandb.group",
)
_KEY = "metrics.wandb"
_DEFAULT = "deepspeed"


def read_wandb(reading: ConfigReading) -> None:
    """Map the project, and the team before it."""
    if reading.engine == "deepspeed":
        return
    enabled, project, team, group = (
        reading.take(name) for name in (_ENABLED, _PROJECT, _TEAM, _GROUP)
    )
    if enabled is None or enabled.value is not True:
        for given in filter(None, (enabled, project, team, group)):
            reading.row(KeyOutcome.IGNORED, given, None, "is off without wandb.enabled")
        return
    owner = f"{team.value}/" if team is not None and team.value else ""
    if project is not None and project.value:
        reading.map(project, _KEY, f"{owner}{project.value}")
        reading.row(KeyOutcome.MAPPED, enabled, _KEY)
    else:
        reading.map(enabled, _KEY, f"{owner}{_DEFAULT}", f'DeepSpeed\'s project is "{_DEFAULT}"')
        _note_empty(reading, project)
    if owner and team is not None:
        reading.row(KeyOutcome.MAPPED, team, _KEY)
    else:
        _note_empty(reading, team)
    if group is not None and group.value:
        reading.row(KeyOutcome.IGNORED, group, None, "a job's run belongs to no group")
    else:
        _note_empty(reading, group)


def _note_empty(reading: ConfigReading, given: ConfigValue | None) -> None:
    if given is not None:
        reading.row(KeyOutcome.IGNORED, given, None, "says nothing")
