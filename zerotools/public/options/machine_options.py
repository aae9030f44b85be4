"""Options that describe a machine. The defaults come from this machine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from zerotools.core.errors import BadRequest
from zerotools.ops.estimate.cards import MOST_GPU_MEMORY, Cards
from zerotools.ops.estimate.terms import Machine
from zerotools.public.options.option import RESOURCES, Gpus, Option, Size
from zerotools.sensors.foreign_memory import drawn_bytes
from zerotools.sensors.snapshot import Snapshot

MOST_HOST_MEMORY = 64 * 2**40
ASSUMED_GPU = 80 * 2**30
_LEAST_BYTES = 2**20
"""Less than this of RAM is a number of GB."""


class MachineOptions(TypedDict, total=False):
    """The machine that trains."""

    gpus: Annotated[
        Gpus | None,
        Option(
            group=RESOURCES,
            metavar="GPUS",
            help="GPUs, one rank each: 4, 4x24 (GB of each card), 8xH100, '2xRTX 4090' or 'this "
            "machine'.  [default: the job file's, else those of this machine]",
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
    ram: Annotated[
        Size | None,
        Option(
            group=RESOURCES,
            metavar="GB",
            help="Memory of the host; a bare number is in GB.",
        ),
    ]


@dataclass(frozen=True)
class GivenMachine:
    """A machine as it was given. None is looked up."""

    gpus: int | None
    gpu_memory: int | None
    host_memory: int | None
    notes: tuple[str, ...] = ()

    def machine(
        self, *, on_gpu: bool = True, look: Callable[[], Snapshot] | None = None
    ) -> Machine:
        """Return the machine. Its notes list the assumptions and their sources; `look` reads this
        machine if a value was not given."""
        memory, host = self.gpu_memory, self.host_memory
        count, notes = self.gpus, list(self.notes)
        if host is None or (on_gpu and (memory is None or count is None)):
            seen, least, total, drawn = _memory_in((look or _look_here)())
            if host is None:
                host = total
                notes.append("host memory: that of this machine; --host-memory sets another")
            if on_gpu and count is None:
                count = seen or 1
            if on_gpu and memory is None:
                memory = least or ASSUMED_GPU
                what = "that of this machine" if least else "80 GiB, as no GPU is seen here"
                what += f", without {drawn / 2**30:.1f} GiB that a desktop holds" if drawn else ""
                notes.append(f"GPU memory: {what}; --gpu-memory sets another")
        return Machine(count or 1, memory or 0, host, on_gpu, tuple(notes))


def given_machine(given: Mapping[str, Any]) -> GivenMachine:
    """Return the machine that bound `MachineOptions` describe.

    Raises:
        BadRequest: no machine has so much memory, or two options say the same.
    """
    cards: Cards = given["gpus"] or Cards()
    memory, host = given["gpu_memory"], given["host_memory"]
    _check("--gpu-memory", memory, MOST_GPU_MEMORY, "GPU")
    if cards.memory is not None and memory is not None:
        raise BadRequest(
            "--gpus already gives the memory of each card; leave --gpu-memory out, or give "
            f"--gpus {cards.count}"
        )
    name = "--host-memory"
    if given["ram"] is not None:
        if host is not None:
            raise BadRequest("--ram and --host-memory are the same; leave one of them out")
        host, name = given["ram"], "--ram"
        host *= 10**9 if host < _LEAST_BYTES else 1
    _check(name, host, MOST_HOST_MEMORY, "machine")
    notes = () if cards.note is None else (cards.note,)
    return GivenMachine(cards.count, cards.memory or memory, host, notes)


def _look_here() -> Snapshot:
    from zerotools.sensors.source import SnapshotSource  # 30 ms, where all is given needlessly

    with SnapshotSource() as source:
        return source.read()


def _memory_in(found: Snapshot) -> tuple[int, int | None, int, int]:
    """Return the number of GPUs, the memory of the smallest, the memory of the host, and the memory
    of that GPU that programs use for drawing on a screen."""
    sizes = [
        (gpu.memory_total_bytes - drawn_bytes(gpu), drawn_bytes(gpu))
        for gpu in found.gpus
        if gpu.memory_total_bytes
    ]
    least, drawn = min(sizes, default=(None, 0))
    return len(found.gpus), least, found.host.memory_total_bytes, drawn


def _check(name: str, given: int | None, most: int, what: str) -> None:
    if given is not None and given > most:
        raise BadRequest(
            f"{name} is {given / 2**30:,.0f} GiB, and no {what} has more than "
            f"{most / 2**30:,.0f} GiB; check the unit"
        )
