"""Read program arguments by type, and use the program's defaults for absent arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerotools.jobs.binding.bind import format_value
from zerotools.jobs.imports.programs.run_settings import RunSettings
from zerotools.jobs.imports.reading.check_deepspeed_keys import AUTO, ConfigValue, typed_value
from zerotools.jobs.imports.reading.config_reader import ConfigReading
from zerotools.jobs.imports.reading.import_report import KeyOutcome
from zerotools.jobs.launcher_keys.config_key import ValueKind

_TRUE = ("yes", "true", "t", "y", "1")
_FALSE = ("no", "false", "f", "n", "0")
"""The spellings of false in transformers' `string_to_bool` (hf_argparser.py)."""
_NOTHING = ("none", "null", "")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


@dataclass
class ArgumentReading:
    """The state while the settings of one training program are translated to one job."""

    run: RunSettings
    config: ConfigReading

    def typed(self, name: str, kind: ValueKind) -> ConfigValue | None:
        """Mark the argument `name` as read, and return it converted to the type `kind`.

        Return None if the argument is absent, empty or invalid.
        """
        given = self.config.pop(name)
        if given is None:
            return None
        try:
            value = _typed(kind, given.value)
        except (ValueError, OverflowError):
            what = f"{given.label} = {format_value(given.value)}: must be {kind.value}"
            self.config.findings.wrong.append(what)
            return None
        if value is None:
            self.config.row(KeyOutcome.IGNORED, given, None, "says nothing")
            return None
        return replace(given, value=value)

    def default(self, name: str, key: str) -> None:
        """If the program has a default for the absent argument `name`, use it for the job's `key`.

        Other sources override this value.
        """
        if name in self.run.defaults:
            self.weak(name, key, self.run.defaults[name])

    def weak(self, name: str, key: str, value: Any) -> None:
        """Use `value` for the job's `key`, because the argument `name` is absent.

        Other sources override this value.
        """
        self.config.default(name, key, value, f"{self.run.who}'s default")

    def unsupported(self, given: ConfigValue, which: str) -> None:
        """Report that jobs do not support the value of an argument.

        `which` is the end of the message: the supported values, or advice.
        """
        what = f"{given.label} = {format_value(given.value)}: is not supported; {which}"
        self.config.findings.unsupported.append(what)

    def path(self, given: ConfigValue, key: str, *, new: bool = False) -> None:
        """Set the job's `key` to the path in an argument. Unless `new` is true, a missing file is
        reported.

        The path is made absolute, because the job file may be read from another directory.
        """
        found = self.run.found(str(given.value))
        value: Any = str(Path.cwd() / found)
        why = "" if new or found.exists() else "does not exist now"
        self.config.map(replace(given, value=value), key, value, why)


def _typed(kind: ValueKind, value: Any) -> Any:
    if isinstance(value, str) and value.lower() in _NOTHING and kind is not ValueKind.TEXT:
        return None
    if kind is ValueKind.BOOL:
        if isinstance(value, str) and value.lower() in (*_TRUE, *_FALSE):
            return value.lower() in _TRUE
        if type(value) is int and value in (0, 1):
            return bool(value)
    if kind is ValueKind.TEXT and isinstance(value, bool):
        raise ValueError
    if kind is ValueKind.TEXT and isinstance(value, (int, float)):
        return str(value)
    if value == AUTO and kind in (ValueKind.COUNT, ValueKind.NUMBER):
        raise ValueError  # only DeepSpeed's JSON has "auto"; the Trainer needs a number
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    return typed_value(kind, value)[0]
