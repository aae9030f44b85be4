"""Export argv[1] to argv[2] in small shards, and die of SIGKILL when argv[3] files are complete."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from harness.patience import Deadline
from zerotools.io.output.journal import NAME
from zerotools.io.output.staging import partial_of
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget

SHARD_BYTES = 2**18
SMALLEST = MemoryBudget(max_memory=3 * 2**16, workers=1)


def main() -> None:
    source, out, complete = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    journal = partial_of(out) / NAME
    conversion = prepare_export(source, out, Options(max_shard_bytes=SHARD_BYTES))
    files = conversion.target.files.values()
    written = SHARD_BYTES * sum(file.size < SHARD_BYTES for file in files)

    def on_bytes(count: int) -> None:
        """Let the journal catch up with every shard that is full, and die in time."""
        nonlocal written
        written += count
        deadline = Deadline(60)
        while (noted := journal.read_bytes().count(b"\n") - 1) < written // SHARD_BYTES:
            assert not deadline.has_passed(), f"{noted} files are noted"
        if noted >= complete:
            os.kill(os.getpid(), signal.SIGKILL)

    perform_conversion(conversion, budget=SMALLEST, overwrite=False, on_bytes=on_bytes)


if __name__ == "__main__":
    main()
