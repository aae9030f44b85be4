"""The process that a job watches after a user has started it by hand.

A pid alone is never an identity: it is reused after the process has ended, and after a restart of
the machine. Example: `"812:180344:0d1c7a52-8b0f-4c53-9b1e-5d5c1c8f7e10"` is the process 812 that
began 180344 ticks after that boot (fields 1 and 22 of /proc/PID/stat, proc(5)).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TEXT = re.compile(r"([1-9][0-9]{0,9}):([0-9]{1,19}):([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


@dataclass(frozen=True, slots=True)
class AdoptedProcess:
    """A process of one boot, by its start."""

    pid: int
    start_ticks: int
    boot_id: str

    def __str__(self) -> str:
        return f"{self.pid}:{self.start_ticks}:{self.boot_id}"


def adopted_process(text: str) -> AdoptedProcess:
    """Return the process of `script.adopted`. Raises ValueError."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError("must be PID:START:BOOT, as zerotools adopt fills it in")
    return AdoptedProcess(int(found[1]), int(found[2]), found[3])
