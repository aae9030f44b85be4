"""One writer to an output directory at a time."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotoolsd.supervisor.transient_errors import is_transient
from zerotoolsd.trainer.rank.failures import MachineNotReady

LOCK = ".lock"


class InUse(RuntimeError):
    """Another process writes to the output directory: it may be over soon."""


def claim(output_dir: Path, stack: ExitStack) -> None:
    """Make `output_dir` and lock it until `stack` closes, or this process ends.

    Raises:
        BadRequest: it cannot be made or written to.
        MachineNotReady: the disk or the file server gives errors that pass.
        InUse: another run holds it.
    """
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(output_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if is_transient(error):
            raise MachineNotReady(f"output_dir {output_dir}: {error.strerror}") from None
        raise BadRequest(f"output_dir {output_dir} cannot be written: {error.strerror}") from None
    stack.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InUse(f"another run is writing to {output_dir}") from None
