"""A rank that stops itself by SIGSTOP where it first calls `STOP_AT`: `module:name` or
`module:class.name`. The program that `test_stopped_jobs` starts in place of the usual one."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

ENTRY = Path(__file__).parents[3] / "daemon" / "zerotoolsd" / "trainer" / "entry.py"


def stop_at(place: str) -> None:
    """Have the first call stop this process before it does anything."""
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *names, name = path.split(".")
    owner = functools.reduce(getattr, names, owner)
    inner, calls = getattr(owner, name), [0]

    @functools.wraps(inner)
    def stopped(*args: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return inner(*args, **options)

    setattr(owner, name, stopped)


def main() -> None:
    spec = importlib.util.spec_from_file_location("entry", ENTRY)
    assert spec is not None
    assert spec.loader is not None
    entry = importlib.util.module_from_spec(spec)
    sys.modules["entry"] = entry
    spec.loader.exec_module(entry)
    entry.make_importable()
    stop_at(os.environ["STOP_AT"])
    entry.main()


if __name__ == "__main__":
    main()
