"""Write argv[1] as argv[3] (a type) to argv[2], and die of SIGKILL after argv[4] bytes.

If the output is in a store, it goes on until a server kills it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from harness.patience import Deadline
from zerotools.core.errors import ZerotoolsError
from zerotools.io.files.open_source import RemotePath
from zerotools.io.output.journal import NAME
from zerotools.io.output.staging import partial_of
from zerotools.io.stores.parse_url import path_of
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.execution.tile_workers import MemoryBudget

SHARD_BYTES = 2**11


def cast(source: str, out: str, dtype: str) -> Conversion:
    """In shards so small that each has a tensor or a few."""
    options = Options(dtype=dtype, max_shard_bytes=SHARD_BYTES, check_names=False)
    return prepare_export(path_of(source), path_of(out), options)


def budget_of(conversion: Conversion) -> MemoryBudget:
    """One worker, so that files of a disk are complete one by one."""
    is_far = isinstance(conversion.destination, RemotePath)
    return MemoryBudget() if is_far else MemoryBudget(max_memory=3 * 2**20, workers=1)


def main() -> None:
    from zerotools.ops.write_output import write_output

    conversion = cast(*sys.argv[1:4])
    out = conversion.destination
    left = int(sys.argv[4])
    has_shards = any(name.startswith("model-0") for name in conversion.target.files)

    def on_bytes(count: int) -> None:
        nonlocal left
        left -= count
        if left > 0 or isinstance(out, RemotePath):
            return
        journal, deadline = partial_of(Path(out)) / NAME, Deadline(20)
        while has_shards and b'"model-0' not in journal.read_bytes():
            assert not deadline.has_passed(), "no shard is noted as complete"
        os.kill(os.getpid(), signal.SIGKILL)

    write_output(conversion, budget=budget_of(conversion), overwrite=False, on_bytes=on_bytes)


if __name__ == "__main__":
    try:
        main()
    except ZerotoolsError as error:
        sys.exit(str(error))
