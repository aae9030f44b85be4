"""What an importer knows of one key of a config."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class ValueKind(Enum):
    """What a value must be; the text ends a sentence. Numbers and booleans may be quoted."""

    BOOL = "true or false"
    COUNT = "a whole number"
    NUMBER = "a number"
    TEXT = "a string"
    NUMBERS = "a list of numbers"
    ANY = "any value"


class KeyAction(Enum):
    """What is done with a key."""

    READ = "read"  # a reader knows what it means
    TUNING = "tuning"  # DeepSpeed's own way of doing the same: results stay as they are
    IGNORED = "ignored"  # concerns DeepSpeed's output or launcher
    FEATURE = "feature"  # changes what is trained: harmless only where it is off


@dataclass(frozen=True)
class ConfigKey:
    """One key; `why` is the reason that a report gives, `default` DeepSpeed's own value."""

    kind: ValueKind
    action: KeyAction
    why: str = ""
    default: Any = None
    stage3: bool = False


def is_off(value: Any, default: Any) -> bool:
    """Whether a feature's value leaves it off: false, none, its default, `{"enabled": false}`."""
    if isinstance(value, dict):
        return not value or str(value.get("enabled")).lower() == "false"
    if default is not None:
        return bool(value == default)
    return value is not True and value in (None, False, 0, 1)
