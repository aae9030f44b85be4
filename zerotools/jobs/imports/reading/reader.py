"""What the readers of a config share: its values, what is said of the job, what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from zerotools.jobs.binding.bind import show
from zerotools.jobs.imports.reading.claims import Claims
from zerotools.jobs.imports.reading.job_keys import accepts, default_of, job_keys, look_up
from zerotools.jobs.imports.reading.report import (
    NOT_TAKEN,
    Findings,
    KeyOutcome,
    ReportRow,
    ResolvedAuto,
)
from zerotools.jobs.imports.reading.typed_keys import AUTO, ConfigValue
from zerotools.jobs.launcher_keys.deepspeed_releases import NEWEST, Release

TRAINER: Mapping[str, Any] = {
    "train.optimizer": "adamw",
    "train.learning_rate": 5e-5,
    "train.betas": (0.9, 0.999),
    "train.eps": 1e-8,
    "train.weight_decay": 0.0,
    "train.max_grad_norm": 1.0,
    "train.schedule": "linear",
    "train.warmup_steps": 0,
    "zero.stage": 2,
}
"""What Hugging Face's Trainer takes where nobody says: for an `"auto"`, and where a config has no
optimizer. transformers 5.23, training_args.py; the stage of an `"auto"` is accelerate 1.15's,
utils/dataclasses.py, DeepSpeedPlugin."""


@dataclass(frozen=True)
class JobValue:
    """A value of the job, and who says so."""

    value: Any
    origin: str


@dataclass
class ConfigReading:
    """One DeepSpeed config being read against one job.

    `remaining` has the keys that no reader has taken yet. Those left at the end are judged by the
    table of keys.
    """

    source: str
    remaining: dict[str, ConfigValue]
    claims: Claims
    findings: Findings
    engine: str = "torch"
    release: Release = NEWEST
    settled: dict[str, Any] = field(init=False)
    """What DeepSpeed is to be given, by dotted key; None where its own default serves."""

    def __post_init__(self) -> None:
        self.settled = {name: given.value for name, given in self.remaining.items()}

    def peek(self, name: str) -> Any:
        """The value of a key; None where it is absent."""
        return self.remaining[name].value if name in self.remaining else None

    def take(self, name: str) -> ConfigValue | None:
        """The key, which counts as read from now on."""
        return self.remaining.pop(name, None)

    def known(self, key: str) -> JobValue | None:
        """What job key `key` is: said somewhere, or done by a launcher where nothing is said; the
        Trainer's default, or the job file's own."""
        claim = self.claims.of(key)
        if claim is not None:
            return JobValue(claim.value, claim.place)
        if key in TRAINER:
            return JobValue(TRAINER[key], "Hugging Face's Trainer, its default")
        default = default_of(key) if key in job_keys() else None
        return None if default is None else JobValue(default, f"the job file's default, {key}")

    def said(self, key: str) -> bool:
        """Whether someone says what job key `key` is."""
        claim = self.claims.of(key)
        return claim is not None and not claim.weak

    def map(self, given: ConfigValue, key: str, value: Any, why: str = "") -> None:
        """Claim `key` for the job, and report it. An `"auto"` is what another says, if one does."""
        if given.note != AUTO:
            self.claims.add(key, value, given.said, shown=given.value)
        elif self.claims.of(key) is None and value is not None:
            self.claims.add(key, value, given.said, weak=True)
        self.row(KeyOutcome.MAPPED, given, key, why)

    def row(
        self, outcome: KeyOutcome, given: ConfigValue, job: str | None = None, why: str = ""
    ) -> None:
        """Report what came of `given`."""
        note = '"auto"' if given.note == AUTO else given.note
        text = "; ".join(part for part in (note, why) if part)
        row = ReportRow(outcome, given.title, given.place, given.value, job, text)
        self.findings.rows.append(row)

    def refuse(self, given: ConfigValue, why: str) -> None:
        """The engine torch cannot do it; DeepSpeed is passed it."""
        if self.engine == "deepspeed":
            self.row(KeyOutcome.PASSED, given)
        else:
            self.findings.unsupported.append(f"{given.said} = {show(given.value)}: {why}")

    def default(self, name: str, key: str, value: Any, why: str = "") -> None:
        """Claim what a launcher does where `name` is absent, and report it; what someone says, or
        an earlier launcher does, stays."""
        before = self.claims.of(key)
        self.claims.add(key, value, f"{self.source} (no {name})", weak=True)
        if before is not None and before.weak and before.shown == value:
            return  # said once already
        if before is not None:
            why = f"{NOT_TAKEN}{before.place} says {show(before.shown)}"
        row = ReportRow(KeyOutcome.DEFAULT, name, self.source, value, key, why)
        self.findings.rows.append(row)

    def resolve(self, name: str, value: Any, origin: str) -> None:
        """Put `value` in the place of the `"auto"` of `name`."""
        given = self.remaining[name]
        self.findings.autos.append(ResolvedAuto(given.title, given.place, value, origin))
        self.remaining[name] = replace(given, value=value, note=AUTO)
        self.settled[name] = list(value) if isinstance(value, tuple) else value


def claims_of_job(tree: Mapping[str, Any], source: str) -> Claims:
    """What the job file itself says, key by key; what it cannot say is refused later."""
    claims = Claims()
    for key in job_keys():
        value = look_up(tree, key)
        if value is not None and accepts(key, value):
            claims.add(key, value, f"{source} {key}")
    return claims
