"""An importer's facts about one key of a config."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class ValueKind(Enum):
    """The required kind of a value; the text ends a sentence. Numbers and booleans may be
    quoted."""

    BOOL = "true or false"
    COUNT = "a whole number"
    NUMBER = "a number"
    TEXT = "a string"
    NUMBERS = "a list of numbers"
    ANY = "any value"


class KeyAction(Enum):
    """The treatment of a key."""

    READ = "read"  # a reader interprets it
    TUNING = "tuning"  # DeepSpeed's own way to the same results
    IGNORED = "ignored"  # concerns DeepSpeed's output or launcher
    FEATURE = "feature"  # changes the training: harmless only if it is off


@dataclass(frozen=True)
class ConfigKey:
    """One key; `why` is the reason in a report, `default` DeepSpeed's default."""

    kind: ValueKind
    action: KeyAction
    why: str = ""
    default: Any = None
    stage3: bool = False


def is_off(value: Any, default: Any) -> bool:
    """Return whether a feature's value leaves it off: false, none, its default, `{"enabled":
    false}`."""
    if isinstance(value, dict):
        return not value or str(value.get("enabled")).lower() == "false"
    if default is not None:
        return bool(value == default)
    return value is not True and value in (None, False, 0, 1)
