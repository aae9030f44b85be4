"""Runs a rank with delayed copies between device and host.

On a GPU, a kernel sleeps on the copy stream before each copy. So code that does not wait for the
copy reads old values. On a CPU, the thread sleeps.
"""

from __future__ import annotations

import runpy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CYCLES = 2_000_000
"""Cycles of the GPU's clock for which a kernel sleeps: about 1 ms."""
SECONDS = 0.001
NAMES = ("to_host", "add_to_host", "to_device")


def delayed(kind: Any, name: str, delay: Callable[[Any], None]) -> None:
    """Change the method `name` of the class `kind` so that it first calls `delay`."""
    inner = getattr(kind, name)

    def late(self: Any, source: Any, target: Any) -> Any:
        delay(self)
        return inner(self, source, target)

    setattr(kind, name, late)


def on_stream(copies: Any) -> None:
    """Let the copy stream of `copies` sleep."""
    import torch

    with torch.cuda.stream(copies._stream):
        torch.cuda._sleep(CYCLES)


def main() -> None:
    """Run the rank, in place of the trainer's `entry`."""
    entry = runpy.run_path(str(ROOT / "daemon" / "zerotoolsd" / "trainer" / "entry.py"))
    entry["make_importable"]()
    from zerotoolsd.trainer.engine_torch.master_weights import CudaCopyStream, DirectCopy

    for name in NAMES:
        delayed(CudaCopyStream, name, on_stream)
        delayed(DirectCopy, name, lambda _: time.sleep(SECONDS))
    entry["main"]()


if __name__ == "__main__":
    main()
