"""Options that describe a machine. The defaults come from this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from zerotools.core.errors import BadRequest
from zerotools.ops.estimate.terms import Machine
from zerotools.public.options.option import RESOURCES, Option, Size

MOST_GPU_MEMORY = 2**40
MOST_HOST_MEMORY = 64 * 2**40
ASSUMED_GPU = 80 * 2**30
_MOST_GPUS = 2**16


class MachineOptions(TypedDict, total=False):
    """The machine that trains."""

    gpus: Annotated[
        int | None,
        Option(
            group=RESOURCES,
            least=1,
            most=_MOST_GPUS,
            metavar="N",
            help="GPUs, one rank each.  [default: the job file's, else those of this machine]",
        ),
    ]
    gpu_memory: Annotated[
        Size | None,
        Option(
            group=RESOURCES,
            metavar="SIZE",
            help="Memory of one GPU.  [default: that of this machine]",
        ),
    ]
    host_memory: Annotated[
        Size | None,
        Option(
            group=RESOURCES,
            metavar="SIZE",
            help="Memory of the host.  [default: that of this machine]",
        ),
    ]


@dataclass(frozen=True)
class GivenMachine:
    """A machine as it was given. None is looked up."""

    gpus: int | None
    gpu_memory: int | None
    host_memory: int | None

    def machine(self, *, on_gpu: bool = True) -> Machine:
        """The machine. Its notes list the assumptions and their sources."""
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


def given_machine(given: Mapping[str, Any]) -> GivenMachine:
    """The machine that bound `MachineOptions` describe.

    Raises:
        BadRequest: no machine has so much memory.
    """
    _check("--gpu-memory", given["gpu_memory"], MOST_GPU_MEMORY, "GPU")
    _check("--host-memory", given["host_memory"], MOST_HOST_MEMORY, "machine")
    return GivenMachine(given["gpus"], given["gpu_memory"], given["host_memory"])


def _this_machine() -> tuple[int, int | None, int]:
    """Return the number of GPUs, the memory of the smallest, and that of the host."""
    from zerotools.sensors.source import SnapshotSource  # 30 ms, where all is given needlessly

    with SnapshotSource() as source:
        found = source.read()
    sizes = [gpu.memory_total_bytes for gpu in found.gpus if gpu.memory_total_bytes]
    return len(found.gpus), min(sizes, default=None), found.host.memory_total_bytes


def _check(name: str, given: int | None, most: int, what: str) -> None:
    if given is not None and given > most:
        raise BadRequest(
            f"{name} is {given / 2**30:,.0f} GiB, and no {what} has more than "
            f"{most / 2**30:,.0f} GiB; check the unit"
        )
