"""Takes the keys of one config, records their values for the job, and reports each outcome.

The readers of all configs use `ConfigReading` and the defaults of Hugging Face's Trainer. Two
functions translate the settings of torch.compile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.imports.reading.check_deepspeed_keys import AUTO, ConfigValue
from zerotools.jobs.imports.reading.import_report import (
    NOT_TAKEN,
    Findings,
    KeyOutcome,
    ReportRow,
    ResolvedAuto,
)
from zerotools.jobs.imports.reading.key_claims import Claims
from zerotools.jobs.imports.reading.look_up_job_keys import default_of, job_keys
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
"""Defaults of Hugging Face's Trainer for keys of the job.

They replace `"auto"`, and are used if a config has no optimizer.

From transformers 5.23, training_args.py; the stage is accelerate 1.15's, utils/dataclasses.py,
DeepSpeedPlugin.
"""


_KEY = "train.compile"


@dataclass(frozen=True)
class JobValue:
    """A value of a key of the job, and the source of the value."""

    value: Any
    origin: str


@dataclass
class ConfigReading:
    """The state while one config is translated to one job.

    `remaining` has the keys of the config that no reader has taken yet. For a key that remains at
    the end, the tables in `launcher_keys` determine the outcome.
    """

    source: str
    remaining: dict[str, ConfigValue]
    claims: Claims
    findings: Findings
    engine: str = "torch"
    release: Release = NEWEST
    settled: dict[str, Any] = field(init=False)
    """The final values in DeepSpeed's config, keyed by dotted key; None means DeepSpeed's default.
    """

    def __post_init__(self) -> None:
        self.settled = {name: given.value for name, given in self.remaining.items()}

    def peek(self, name: str) -> Any:
        """Return the value of the config's key `name` without taking it; None if the key is
        absent.
        """
        return self.remaining[name].value if name in self.remaining else None

    def pop(self, name: str) -> ConfigValue | None:
        """Remove the config's key `name` from `remaining`, and return its value; None if the key is
        absent.
        """
        return self.remaining.pop(name, None)

    def current_value(self, key: str) -> JobValue | None:
        """Return the current value of the job's `key`; None if it has no value.

        The value is from a claim, or else the Trainer's default, or else the job file's default.
        """
        claim = self.claims.of(key)
        if claim is not None:
            return JobValue(claim.value, claim.place)
        if key in TRAINER:
            return JobValue(TRAINER[key], "the Trainer's default")
        default = default_of(key) if key in job_keys() else None
        return None if default is None else JobValue(default, f"the job file's default of {key}")

    def is_stated(self, key: str) -> bool:
        """Return whether a source states a value for the job's `key`.

        The default of a launcher does not count.
        """
        claim = self.claims.of(key)
        return claim is not None and not claim.weak

    def map(self, given: ConfigValue, key: str, value: Any, why: str = "") -> None:
        """Record `value` as the config's value for the job's `key`, and report it.

        If the config has `"auto"`, a value from another source is kept.
        """
        if given.note != AUTO:
            self.claims.add(key, value, given.label, shown=given.value)
        elif self.claims.of(key) is None and value is not None:
            self.claims.add(key, value, given.label, weak=True)
        self.row(KeyOutcome.MAPPED, given, key, why)

    def row(
        self, outcome: KeyOutcome, given: ConfigValue, job: str | None = None, why: str = ""
    ) -> None:
        """Add a row about the config's key `given` to the report.

        `job` is the key of the job file that gets the value, `why` a remark.
        """
        note = '"auto"' if given.note == AUTO else given.note
        text = "; ".join(part for part in (note, why) if part)
        row = ReportRow(outcome, given.title, given.place, given.value, job, text)
        self.findings.rows.append(row)

    def refuse(self, given: ConfigValue, why: str) -> None:
        """Report a config key that engine torch does not support; `why` is the reason.

        With engine deepspeed, the key is passed to DeepSpeed instead.
        """
        if self.engine == "deepspeed":
            self.row(KeyOutcome.PASSED, given)
        else:
            self.findings.unsupported.append(f"{given.label} = {format_value(given.value)}: {why}")

    def default(self, name: str, key: str, value: Any, why: str = "") -> None:
        """Record a launcher's default as the value of the job's `key`, because the config's key
        `name` is absent. Values of other sources and of earlier launchers are kept.
        """
        before = self.claims.of(key)
        self.claims.add(key, value, f"{self.source} (no {name})", weak=True)
        if before is not None and before.weak and before.shown == value:
            return  # it was reported before
        if before is not None:
            why = f"{NOT_TAKEN}{before.place} says {format_value(before.shown)}"
        row = ReportRow(KeyOutcome.DEFAULT, name, self.source, value, key, why)
        self.findings.rows.append(row)

    def resolve(self, name: str, value: Any, origin: str) -> None:
        """Replace the value `"auto"` of the config's key `name` by `value`, and report `origin` as
        the source of the new value.
        """
        given = self.remaining[name]
        self.findings.autos.append(ResolvedAuto(given.title, given.place, value, origin))
        self.remaining[name] = replace(given, value=value, note=AUTO)
        self.settled[name] = list(value) if isinstance(value, tuple) else value


def read_compile(reading: ConfigReading) -> None:
    """Translate the backend in accelerate's `dynamo_config` to the job file.

    Other settings of dynamo are ignored.
    """
    given = reading.pop("dynamo_config")
    if given is None:
        return
    options: Mapping[str, Any] = given.value if isinstance(given.value, Mapping) else {}
    backend = str(options.get("dynamo_backend", given.value or "no")).upper()
    if not options and backend == "{}":
        backend = "NO"
    if backend in ("NO", "FALSE", "NONE", ""):
        reading.row(KeyOutcome.IGNORED, given, None, "nothing is compiled")
    elif backend == "INDUCTOR":
        reading.map(
            given, _KEY, True, "torch.compile compiles block by block, with its own settings"
        )
    else:
        what = (
            f"{given.label}: dynamo_backend {backend}: the engine torch compiles only with INDUCTOR"
        )
        reading.findings.unsupported.append(what)


def read_compile_section(reading: ConfigReading) -> None:
    """Translate DeepSpeed's section `compile` to the job file.

    Its switches are `deepcompile` (`enabled` in releases before 0.14.4) and `disable`.
    """
    if reading.engine == "deepspeed":
        return
    names = ("compile.deepcompile", "compile.enabled", "compile.disable")
    switches = {name: given for name in names if (given := reading.pop(name)) is not None}
    on = {n: bool(g.value) is not n.endswith("disable") for n, g in switches.items()}
    compiles = any(on[n] for n in on) and all(on.get(n, True) for n in names[1:])
    for name, given in switches.items():
        if compiles and on[name]:
            reading.map(given, _KEY, True, "torch.compile compiles block by block")
        else:
            reading.row(KeyOutcome.IGNORED, given, None, "nothing is compiled")
    backend = reading.pop("compile.backend")
    if backend is None:
        return
    if compiles and backend.value not in (None, "inductor"):
        reading.refuse(backend, "the engine torch compiles only with inductor")
    else:
        reading.row(KeyOutcome.IGNORED, backend, None, "the engine torch does the same")
