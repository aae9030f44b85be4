"""A case: what attacks, how it is made, and the sentence that every command must say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Make = Callable[[Path], Path]
"""Makes the files in an empty directory; what the commands are given."""

READ = ("inspect",)
WRITE = ("consolidate",)
BOTH = (*READ, *WRITE)
VERIFY = ("verify",)
"""What a case is shown to."""

ADAPTER = ("adapter",)
ARGUMENTS = {
    "adapter": ("consolidate", "--adapter-only", "{path}", "{out}"),
    "consolidate": ("consolidate", "{path}", "{out}"),
    "diff": ("diff", "{path}", "{path}"),
    "inspect": ("inspect", "{path}"),
    "salvage": ("salvage", "{path}", "{out}"),
    "verify": ("verify", "{path}"),
}
"""What a command is given, by the name that cases call it."""


@dataclass(frozen=True)
class Case:
    """`says` is a regular expression; `status` the exit status, None where the commands differ.

    `as_nobody`: root may read everything, and another user may not."""

    name: str
    make: Make
    says: str
    commands: tuple[str, ...] = BOTH
    status: int | None = 3
    as_nobody: bool = False
