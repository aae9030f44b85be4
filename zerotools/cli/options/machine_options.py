"""Options that describe a machine; what they leave out is looked up on this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from zerotools.cli.options.grouped import RESOURCES, option
from zerotools.cli.options.sizes import ByteSize
from zerotools.core.errors import BadRequest
from zerotools.ops.estimate.terms import Machine

MOST_GPU_MEMORY = 2**40
MOST_HOST_MEMORY = 64 * 2**40
ASSUMED_GPU = 80 * 2**30
_MOST_GPUS = 2**16


@dataclass(frozen=True)
class MachineOptions:
    """What was given of the machine; None: not."""

    gpus: int | None
    gpu_memory: int | None
    host_memory: int | None

    def machine(self, *, on_gpu: bool = True) -> Machine:
        """The machine; its notes say what was assumed, and where from."""
        memory, host = self.gpu_memory, self.host_memory
        count, notes = self.gpus, []
        if host is None or (on_gpu and (memory is None or count is None)):
            seen, least, total = _this_machine()
            if host is None:
                host = total
                notes.append("host memory: that of this machine; --host-memory sets another")
            if on_gpu and count is None:
                count = seen or 1
            if on_gpu and memory is None:
                memory = least or ASSUMED_GPU
                what = "that of this machine" if least else "80 GiB, as no GPU is seen here"
                notes.append(f"GPU memory: {what}; --gpu-memory sets another")
        return Machine(count or 1, memory or 0, host, on_gpu, tuple(notes))


def _this_machine() -> tuple[int, int | None, int]:
    """How many GPUs there are, the memory of the smallest, that of the host."""
    from zerotools.sensors.source import SnapshotSource  # 30 ms, where all is given needlessly

    with SnapshotSource() as source:
        found = source.read()
    sizes = [gpu.memory_total_bytes for gpu in found.gpus if gpu.memory_total_bytes]
    return len(found.gpus), min(sizes, default=None), found.host.memory_total_bytes


def machine_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options; the command is given them as `machine`."""

    @wraps(command)
    def collected(
        *, gpus: int | None, gpu_memory: int | None, host_memory: int | None, **given: Any
    ) -> int:
        _check("--gpu-memory", gpu_memory, MOST_GPU_MEMORY, "a GPU")
        _check("--host-memory", host_memory, MOST_HOST_MEMORY, "a machine")
        return command(**given, machine=MachineOptions(gpus, gpu_memory, host_memory))

    options = (
        option(
            "--gpus",
            group=RESOURCES,
            type=click.IntRange(1, _MOST_GPUS),
            metavar="N",
            help="GPUs, one rank each.  [default: the job file's, else those of this machine]",
        ),
        option(
            "--gpu-memory",
            group=RESOURCES,
            type=ByteSize(),
            metavar="SIZE",
            help="Memory of one GPU.  [default: that of this machine]",
        ),
        option(
            "--host-memory",
            group=RESOURCES,
            type=ByteSize(),
            metavar="SIZE",
            help="Memory of the host.  [default: that of this machine]",
        ),
    )
    for add in reversed(options):
        add(collected)
    return collected


def _check(name: str, given: int | None, most: int, what: str) -> None:
    if given is not None and given > most:
        raise BadRequest(
            f"{name} is {given / 2**30:,.0f} GiB, and no {what.split()[-1]} has more than "
            f"{most / 2**30:,.0f} GiB; check the unit"
        )
