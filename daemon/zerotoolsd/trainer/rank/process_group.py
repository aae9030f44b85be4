"""The process group of the ranks, and decisions that rank 0 makes for all ranks."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotoolsd.supervisor.heartbeats.shared_heartbeat import HeartbeatWriter
from zerotoolsd.supervisor.heartbeats.stall_limits import CONNECTING
from zerotoolsd.trainer.rank.rank_errors import BadCheckpoint, MachineNotReady, one_line
from zerotoolsd.trainer.rank.rank_settings import Rank
from zerotoolsd.trainer.rank.rendezvous_of_nodes import MeetingPlace, meet_nodes

Value = TypeVar("Value")

CONTROL = "control"
_KINDS: tuple[type[ZerotoolsError], ...] = (BadCheckpoint, MachineNotReady, BadRequest)
"""The types of errors that the other ranks raise if rank 0 has an error.

The first type that fits the error is used, or the last type if none fits.
"""
BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
"""Backend of the group of all ranks, by device.

torch 2.8 and 2.9 cannot divide a group with two backends into the groups of a mesh.
"""
LOOPBACK = ("127.0.0.1", "localhost", "::1")

STEP_TIMEOUT = timedelta(minutes=10)
"""Longest time to wait for another rank within a step, if no supervisor detects stalls.

gloo notices at once that a rank has died.
"""
START_TIMEOUT = timedelta(hours=2)
"""Longest time to wait for another rank before the first step has ended.

This is longer than STEP_TIMEOUT, because ranks take different times to read weights and to compile.
"""
CONTROL_TIMEOUT = timedelta(hours=6)
"""Longest time to wait while rank 0 reads the data or writes a checkpoint."""
TRIED = 1 << 20
"""Number of elements in the first collective.

It is large enough that NCCL copies them in the same way as gradients.
"""


@dataclass(frozen=True)
class WorldGroup:
    """This rank's view of the group of all ranks of a job.

    `control` is a separate gloo group for decisions and checkpoints. `heartbeat` records that this
    rank is alive. `meeting` is the token of the rendezvous of the nodes; empty on one node.
    """

    rank: Rank
    device: torch.device
    control: dist.ProcessGroup
    heartbeat: HeartbeatWriter = field(default_factory=HeartbeatWriter)
    meeting: str = ""

    def decided_by_rank_zero(self, decide: Callable[[], Value]) -> Value:
        """Call `decide` on rank 0 only, and return its result on every rank.

        Raises:
            ZerotoolsError: the error of `decide`, as one of `_KINDS`. It is raised on every rank.
            RuntimeError: `decide` raised another exception, which rank 0 raises itself.
        """
        attempt = _attempt(decide) if self.rank.leads else _Attempt()
        answer: list[Any] = [attempt.value, attempt.problem]
        with self.heartbeat.waiting("agreement with rank 0"):
            dist.broadcast_object_list(answer, src=0, group=self.control)
        if answer[1] is not None:
            raise attempt.other or _error(*answer[1])
        value: Value = answer[0]
        return value

    def decided_by_node(self, decide: Callable[[], Value]) -> Value:
        """Call `decide` on the first rank of each node only, and return its result on every rank of
        the node.

        Raises:
            ZerotoolsError: the error of `decide` on any node, as one of `_KINDS`. It is raised on
                every rank.
            RuntimeError: `decide` raised another exception, which its rank raises itself.
        """
        if self.rank.nodes == 1:
            return self.decided_by_rank_zero(decide)
        attempt = _attempt(decide) if self.rank.leads_node else _Attempt()
        answers = self.gathered((attempt.value, attempt.problem))
        if attempt.other is not None:
            raise attempt.other
        for number, (_, problem) in enumerate(answers):
            if problem is not None:
                place, message = problem
                raise _error(place, f"node {number // self.rank.node_ranks}: {message}")
        return cast(Value, answers[self.rank.index - self.rank.local][0])

    def gathered(self, value: Value) -> list[Value]:
        """Return the `value` of each rank, in the order of the ranks, on every rank."""
        values: list[Any] = [None] * self.rank.world_size
        with self.heartbeat.waiting("exchange between ranks"):
            dist.all_gather_object(values, value, group=self.control)
        return values

    def wait_at_most(self, longest: timedelta) -> None:
        """Set the timeout of all process groups, except the groups for control, to `longest`."""
        set_timeout = timeout_setter()
        for group in list(distributed_c10d._world.pg_map):
            if group.group_desc != CONTROL:
                set_timeout(longest, group)

    def total(self, values: list[float]) -> list[float]:
        """Return the sum over the ranks for each of `values`, computed in fp64."""
        if self.rank.world_size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        with self.heartbeat.waiting("all-reduce"):
            dist.all_reduce(tensor)
            summed: list[float] = tensor.tolist()
        return summed

    def total_of(self, values: torch.Tensor, own: torch.Tensor) -> tuple[list[float], float]:
        """Sum the fp64 vector `values`, on the device of this rank, over the ranks, in place.

        Returns (the sums, the scalar `own` of this rank). Both are copied from the device in one
        copy.
        """
        if self.rank.world_size == 1:
            *alone, mine = torch.cat([values, own.view(1)]).tolist()
            return alone, mine
        with self.heartbeat.waiting("all-reduce"):
            dist.all_reduce(values)
            *summed, mine = torch.cat([values, own.view(1)]).tolist()
        return summed, mine


def join_values(
    numbers: Sequence[float], tensors: Sequence[torch.Tensor], device: torch.device
) -> torch.Tensor:
    """Join `numbers` and the elements of `tensors` to one fp64 vector on `device`.

    The host does not wait for the device.
    """
    filled = (torch.full((1,), n, dtype=torch.float64, device=device) for n in numbers)
    return torch.cat([*filled, *(tensor.double().view(-1) for tensor in tensors)])


def timeout_setter(package: Any = dist) -> Callable[[timedelta, Any], None]:
    """Return the function of `package` that sets the timeout of a process group.

    torch 2.14 has renamed this function, and warns if the old name is used.
    """
    found: Callable[[timedelta, Any], None] | None = getattr(package, "set_timeout", None)
    return found or distributed_c10d._set_pg_timeout


@dataclass(frozen=True)
class _Attempt:
    """The result of a decision on one rank: `value`, or the `problem` that is sent to the other
    ranks.

    `problem` is (index in `_KINDS`, message) for a ZerotoolsError. For another error, `other`, the
    index is None.
    """

    value: Any = None
    problem: tuple[int | None, str] | None = None
    other: Exception | None = None


def _attempt(decide: Callable[[], Any]) -> _Attempt:
    try:
        return _Attempt(decide())
    except ZerotoolsError as error:
        kinds = (place for place, kind in enumerate(_KINDS) if isinstance(error, kind))
        return _Attempt(problem=(next(kinds, len(_KINDS) - 1), str(error)))
    except Exception as error:  # without an answer, the other ranks would wait for one
        return _Attempt(problem=(None, one_line(error)), other=error)


def _error(place: int | None, message: str) -> Exception:
    return RuntimeError(message) if place is None else _KINDS[place](message)


@contextmanager
def joined_group(
    rank: Rank,
    device: str,
    heartbeat: HeartbeatWriter | None = None,
    meeting: MeetingPlace | None = None,
) -> Iterator[WorldGroup]:
    """Join the process group with `join_group`, and yield the group.

    All ranks leave the group together at the end of the context, because NCCL lets a rank leave
    only when the other ranks leave too. After an error, a rank does not leave the group: its
    process ends. The other ranks may still be waiting for it in a step.

    Raises:
        BadRequest: the errors of `join_group` and `check_all_reduce`.
        MachineNotReady, StoppedBeforeStart: the errors of `join_group`.
    """
    heartbeat = heartbeat or HeartbeatWriter()
    heartbeat.enter("meeting the other ranks")
    with heartbeat.waiting(""):
        group = join_group(
            rank, device, meeting and replace(meeting, waits=heartbeat.beat), heartbeat
        )
        check_all_reduce(group)
    heartbeat.enter("preparing")
    yield replace(group, heartbeat=heartbeat)
    dist.destroy_process_group()


def join_group(
    rank: Rank,
    device: str,
    meeting: MeetingPlace | None = None,
    heartbeat: HeartbeatWriter | None = None,
) -> WorldGroup:
    """Connect to the other ranks at MASTER_ADDR:MASTER_PORT, and return the group.

    `device` is "cpu" or "cuda". The ranks wait for one another up to START_TIMEOUT: see
    `WorldGroup.wait_at_most`. If the job has several nodes, all nodes first join the rendezvous
    `meeting`. When all ranks have arrived, the phase CONNECTING begins, in which NCCL connects the
    GPUs. This may hang.

    Raises:
        BadRequest: the job needs GPUs and this torch sees too few; or an error of `meet_nodes`.
        MachineNotReady, StoppedBeforeStart: the errors of `meet_nodes`.
    """
    stay_on_this_machine(os.environ)
    token = ""
    if meeting is not None:
        store, token = meet_nodes(meeting, rank, _node_printer(rank), START_TIMEOUT)
        if (interface := interface_to(meeting.host, meeting.port)) is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    else:
        store, _, _ = next(
            dist.rendezvous("env://", rank.index, rank.world_size, timeout=START_TIMEOUT)
        )
    place = device_of_rank(rank, device)
    wait_for_ranks(store, rank, START_TIMEOUT)
    if heartbeat is not None:
        heartbeat.enter(CONNECTING)
    dist.init_process_group(
        BACKENDS[device],
        timeout=START_TIMEOUT,
        rank=rank.index,
        world_size=rank.world_size,
        store=store,
        device_id=None if place.index is None else place,
    )
    return WorldGroup(rank, place, control_group(), meeting=token)


def wait_for_ranks(store: dist.Store, rank: Rank, timeout: timedelta) -> None:
    """Record in `store` that this rank has arrived, and wait until all ranks have arrived.

    Raises:
        RuntimeError: the error of torch's store after `timeout`.
    """
    store.set(f"ready/{rank.index}", "")
    store.wait([f"ready/{index}" for index in range(rank.world_size)], timeout)


def device_of_rank(rank: Rank, device: str) -> torch.device:
    """Make the device of this rank the current device, and return the device.

    Raises:
        BadRequest: the job needs GPUs and this torch sees too few.
    """
    if device != "cuda":
        return torch.device(device)
    visible = torch.cuda.device_count()
    if visible <= rank.local:
        raise BadRequest(
            f'device = "cuda": local rank {rank.local} needs a separate GPU, but torch '
            f"{torch.__version__} sees {visible}; check nvidia-smi, and that this torch is built "
            "for CUDA"
        )
    place = torch.device(device, rank.local)
    torch.cuda.set_device(place)
    return place


def check_all_reduce(
    group: WorldGroup, reduce: Callable[[torch.Tensor], object] = dist.all_reduce
) -> None:
    """Sum numbers over the ranks, and check the result.

    If direct copies between GPUs do not work, this call hangs or the sums are wrong.

    Raises:
        BadRequest: the sums are wrong.
    """
    ranks = group.rank.world_size
    if ranks == 1:
        return
    values = torch.arange(TRIED, device=group.device).remainder_(997).add_(1).double()
    summed = values * (group.rank.index + 1)
    reduce(summed)
    wrong = int((summed != values * (ranks * (ranks + 1) // 2)).sum())
    if wrong:
        raise BadRequest(
            f"{wrong} of {TRIED} numbers are summed wrongly over {ranks} ranks: direct copies "
            'between these GPUs fail; set env.NCCL_P2P_DISABLE = "1", or repair the machine '
            "(see zerotools help use-consumer-cards)"
        )


def _node_printer(rank: Rank) -> Callable[[str], None]:
    def print_line(line: str) -> None:
        if rank.leads_node:
            print(line, flush=True)

    return print_line


def control_group() -> dist.ProcessGroup:
    """Make a gloo group of all ranks for decisions and checkpoints. All ranks call it together."""
    return dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT, group_desc=CONTROL)


def stay_on_this_machine(environment: MutableMapping[str, str]) -> None:
    """Make gloo use the loopback interface, if all ranks are on this machine.

    Jobs on GPUs use gloo too. By default gloo listens at the address of the host name. This address
    may belong to no interface, or may be behind a firewall. `environment` is changed.
    """
    if environment.get("MASTER_ADDR") in LOOPBACK:
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")


_SIOCGIFADDR = 0x8915
"""Number of the Linux request for the address of a network interface, netdevice(7)."""


def interface_to(host: str, port: int) -> str | None:
    """Return the name of the network interface through which `host` is reached; None if unknown.

    If `host` is this machine, the result is the interface with the address of `host`.
    """
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            if _address_of(probe, name) == own:
                return name
    return None


def _address_of(probe: socket.socket, interface: str) -> str | None:
    request = struct.pack("256s", interface.encode()[:15])
    try:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])
