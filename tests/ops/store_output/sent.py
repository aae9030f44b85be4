"""Reshard argv[1] to argv[2]: a process that a server may kill at any of its requests."""

from __future__ import annotations

import sys

from zerotools.core.errors import ZerotoolsError
from zerotools.io.stores.parse_url import path_of
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.conversions.reshard import prepare_reshard
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.write_output import write_output


def send(source: str, out: str, *, resume: bool = False, verify: bool = False) -> Conversion:
    """
    Raises:
        ZerotoolsError: as the command.
    """
    conversion = prepare_reshard(path_of(source), path_of(out), world_size=3)
    assert isinstance(conversion, Conversion)
    write_output(conversion, budget=MemoryBudget(), overwrite=False, resume=resume, verify=verify)
    return conversion


if __name__ == "__main__":
    try:
        send(sys.argv[1], sys.argv[2])
    except ZerotoolsError as error:
        sys.exit(str(error))
