"""The declaration of one key of a config: its type, its default, and how the import treats it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class ValueKind(Enum):
    """The type of a key's value.

    The text of a member completes the sentence "must be ..." of a message. Numbers and booleans may
    be in quotes.
    """

    BOOL = "true or false"
    COUNT = "a whole number"
    NUMBER = "a number"
    TEXT = "a string"
    NUMBERS = "a list of numbers"
    ANY = "any value"


class KeyAction(Enum):
    """The way in which the import treats a key of a config."""

    READ = "read"  # a reader interprets it
    TUNING = "tuning"  # DeepSpeed's own way to the same results
    IGNORED = "ignored"  # concerns DeepSpeed's output or launcher
    FEATURE = "feature"  # changes the training: harmless only if it is off


@dataclass(frozen=True)
class ConfigKey:
    """The declaration of one key of a config.

    Attributes:
        kind: the type of the value.
        action: how the import treats the key.
        why: the reason that the report shows.
        default: DeepSpeed's default.
        stage3: true if the key has an effect only at ZeRO stage 3.
    """

    kind: ValueKind
    action: KeyAction
    why: str = ""
    default: Any = None
    stage3: bool = False


def is_off(value: Any, default: Any) -> bool:
    """Return whether a feature is off if its key has this value.

    A section is off if it is empty or has `"enabled": false`. Another value is off if it is
    `default`, or, without a default, if it is None, false, 0 or 1.
    """
    if isinstance(value, dict):
        return not value or str(value.get("enabled")).lower() == "false"
    if default is not None:
        return bool(value == default)
    return value is not True and value in (None, False, 0, 1)
