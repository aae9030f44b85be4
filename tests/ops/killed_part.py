"""Export part argv[3] of argv[4] of argv[1] to argv[2] in small shards, and die of SIGKILL when one
of its files is complete."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from harness.patience import Deadline
from tests.ops.killed_export import SHARD_BYTES, SMALLEST
from zerotools.io.output.journal import NAME
from zerotools.io.output.staging import partial_of
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_part, prove_part
from zerotools.ops.execution.output_part import OutputPart


def main() -> None:
    source, out, part = Path(sys.argv[1]), Path(sys.argv[2]), OutputPart(*map(int, sys.argv[3:5]))
    journal = partial_of(out) / f"{NAME}.{part.index}"

    written = 0

    def on_bytes(count: int) -> None:
        nonlocal written
        written += count
        deadline = Deadline(60)
        while written >= SHARD_BYTES:  # a file is full, and is noted in a moment
            if journal.read_bytes().count(b"\n") > 1:
                os.kill(os.getpid(), signal.SIGKILL)
            assert not deadline.has_passed()

    conversion = prepare_export(source, out, Options(max_shard_bytes=SHARD_BYTES))
    perform_part(
        conversion,
        prove_part(conversion, part, alignment=64)[1],
        budget=SMALLEST,
        overwrite=False,
        on_bytes=on_bytes,
    )


if __name__ == "__main__":
    main()
