"""How ranks leave their group: together, but for one that fails."""

from __future__ import annotations

import inspect
import os
from datetime import timedelta
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.rank import process_group
from zerotoolsd.trainer.rank.rank_settings import Rank

pytestmark = pytest.mark.torch


def test_a_rank_that_fails_does_not_wait_for_the_others_to_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch.distributed as dist

    from zerotoolsd.trainer.rank.process_group import joined_group

    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    alone = Rank(index=0, local=0, world_size=1)
    with joined_group(alone, "cpu") as group:
        assert group.gathered("here") == ["here"]
    assert not dist.is_initialized()
    with pytest.raises(ZeroDivisionError), joined_group(alone, "cpu"):
        raise ZeroDivisionError
    try:
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("error", "others"),
    [
        (BadRequest("no such file"), (BadRequest, "node 0: no such file")),
        (OSError(5, "I/O error"), (RuntimeError, r"node 0: OSError: \[Errno 5\] I/O error")),
    ],
)
def test_every_rank_fails_where_one_cannot_decide(
    error: Exception, others: tuple[type[Exception], str]
) -> None:
    import torch

    from zerotoolsd.trainer.rank.process_group import WorldGroup

    sent: list[Any] = []

    class Gathered(WorldGroup):
        """What rank 0 sends arrives on all ranks."""

        def gathered(self, value: Any) -> list[Any]:
            sent.extend([] if sent else [value])
            return sent * self.rank.world_size

    def decide() -> None:
        raise error

    kinds = ((type(error), str(error).replace("[", r"\[")), others)
    for index, (kind, words) in enumerate(kinds):
        rank = Rank(index=2 * index, local=0, world_size=4, node=index, nodes=2)
        group = Gathered(rank, torch.device("cpu"), control=None)
        with pytest.raises(kind, match=words):
            group.decided_by_node(decide if rank.leads else lambda: None)


def test_rank_zero_raises_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from zerotoolsd.trainer.rank.process_group import joined_group

    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    with joined_group(Rank(index=0, local=0, world_size=1), "cpu") as group:
        with pytest.raises(ZeroDivisionError):
            group.decided_by_rank_zero(lambda: 1 // 0)
        with pytest.raises(BadRequest, match="here"):
            group.decided_by_rank_zero(refuse)


def refuse() -> None:
    raise BadRequest("here")


def test_sums_of_the_first_collective_are_checked() -> None:
    """On GPUs without direct copies it hangs, which its phase tells, or loses numbers."""
    import torch

    from zerotoolsd.trainer.rank.process_group import TRIED, WorldGroup, check_all_reduce

    rank = Rank(index=1, local=1, world_size=3)
    group = WorldGroup(rank, torch.device("cpu"), control=None)
    check_all_reduce(group, lambda values: values.mul_(3))  # 1 + 2 + 3 of its 2
    many = WorldGroup(Rank(index=0, local=0, world_size=4096), group.device, control=None)
    check_all_reduce(many, lambda values: values.mul_(4096 * 4097 // 2))  # more than fp32 counts
    with pytest.raises(BadRequest, match=rf"7 of {TRIED} numbers .* over 3 ranks: .*NCCL_P2P"):
        check_all_reduce(group, lambda values: values[7:].mul_(3))


def test_the_gpus_are_connected_in_a_phase_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL connects them while the group is made: a hang there has the deadline of that phase."""
    import torch.distributed as dist

    from zerotoolsd.supervisor.heartbeats.shared_heartbeat import HeartbeatWriter
    from zerotoolsd.supervisor.heartbeats.stall_limits import CONNECTING

    events = list[str]()

    class Recorded(HeartbeatWriter):
        def enter(self, phase: str, doing: str = "") -> None:
            events.append(phase)

    def hang(*_: Any, **__: Any) -> None:
        events.append("init_process_group")
        raise TimeoutError

    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    monkeypatch.setattr(dist, "init_process_group", hang)
    alone = Rank(index=0, local=0, world_size=1)
    with pytest.raises(TimeoutError), process_group.joined_group(alone, "cpu", Recorded()):
        pass
    assert events == ["meeting the other ranks", CONNECTING, "init_process_group"]


def test_that_phase_begins_when_all_ranks_have_come() -> None:
    import torch.distributed as dist

    from zerotoolsd.trainer.rank.process_group import wait_for_ranks

    store, short = dist.HashStore(), timedelta(milliseconds=10)
    with pytest.raises(RuntimeError, match=r"[Tt]imeout"):
        wait_for_ranks(store, Rank(index=0, local=0, world_size=2), short)
    wait_for_ranks(store, Rank(index=1, local=1, world_size=2), short)
    wait_for_ranks(store, Rank(index=0, local=0, world_size=2), short)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gloo_stays_on_this_machine_on_every_device(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    import torch
    import torch.distributed as dist

    from zerotools.core.errors import BadRequest
    from zerotoolsd.trainer.rank.process_group import join_group, stay_on_this_machine

    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    try:
        join_group(Rank(index=0, local=64, world_size=1), device)
        dist.destroy_process_group()
    except BadRequest:  # no machine has so many GPUs
        assert device == "cuda"
        assert torch.cuda.device_count() <= 64
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    chosen, remote = (
        {"GLOO_SOCKET_IFNAME": "eth1", "MASTER_ADDR": "127.0.0.1"},
        {"MASTER_ADDR": "a"},
    )
    for environment in (chosen, remote):
        before = dict(environment)
        stay_on_this_machine(environment)
        assert environment == before


def test_a_rank_takes_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from zerotools.core.errors import BadRequest
    from zerotoolsd.trainer.rank.process_group import device_of_rank

    chosen = list[Any]()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    place = device_of_rank(Rank(index=5, local=1, world_size=8), "cuda")
    assert chosen == [place] == [torch.device("cuda", 1)]
    with pytest.raises(BadRequest, match=r"local rank 2 needs a separate GPU, but torch .* sees 2"):
        device_of_rank(Rank(index=6, local=2, world_size=8), "cuda")
    assert device_of_rank(Rank(index=6, local=2, world_size=8), "cpu") == torch.device("cpu")
    assert len(chosen) == 1


def longest(group: Any) -> float:
    """Seconds that a group waits."""
    import torch

    seconds: float = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    return seconds


def test_a_start_may_take_longer_than_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from zerotoolsd.trainer.rank.process_group import (
        CONTROL_TIMEOUT,
        START_TIMEOUT,
        STEP_TIMEOUT,
        control_group,
        joined_group,
    )

    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    with joined_group(Rank(index=0, local=0, world_size=1), "cpu") as group:
        world = dist.group.WORLD
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
        groups = [world, *(mesh.get_group(number) for number in range(2))]
        control = [group.control, control_group()]
        assert longest(world) == START_TIMEOUT.total_seconds()
        for limit in (START_TIMEOUT, STEP_TIMEOUT):
            group.wait_at_most(limit)
            assert {longest(each) for each in groups} == {limit.total_seconds()}
            assert {longest(each) for each in control} == {CONTROL_TIMEOUT.total_seconds()}


class SplitBackend:
    """What torch asks NCCL's part of a group of two ranks before it splits the group."""

    supports_splitting, options = True, None

    def __init__(self, asked: list[Any]) -> None:
        self.asked = asked

    def comm_split_count(self) -> int:
        return 0

    def perform_nocolor_split(self, device: Any) -> None:
        """As NCCL's, of a rank that is in none of the new groups."""
        self.asked.append(device)


class SplitGroup:
    """The default group of rank 0 of two, on a GPU."""

    group_desc, bound_device_id = "default_pg", "cuda:0"

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def _get_backend(self, device: Any) -> SplitBackend:
        return SplitBackend(self.asked)

    def split_group(self, ranks: Any, **given: Any) -> None:
        self.asked.append(ranks)


def test_torch_splits_the_group_of_gpus_into_those_of_a_mesh() -> None:
    """torch 2.8 and 2.9 split a group of one backend alone, which they look up by its name. The
    function is torch's own, and what it asks is stood in for. This rank is in none of the new
    groups: for others torch 2.8 makes an NCCL group."""
    import torch
    from torch.distributed import Backend, distributed_c10d

    from zerotoolsd.trainer.rank.process_group import BACKENDS

    assert BACKENDS["cuda"] in Backend.backend_list
    whole = SplitGroup()
    accelerator = SimpleNamespace(
        is_available=lambda: True, current_accelerator=lambda: torch.device("cuda")
    )
    found = {
        "torch": SimpleNamespace(accelerator=accelerator, device=torch.device),
        "_world": SimpleNamespace(
            pg_map={whole: (BACKENDS["cuda"], None)}, pg_group_ranks={whole: {0: 0, 1: 1}}
        ),
        "_get_default_group": lambda: whole,
        "_process_group_name": lambda *_, **__: "name",
    }
    theirs = inspect.unwrap(distributed_c10d.split_group)
    split = FunctionType(theirs.__code__, {**theirs.__globals__, **found})
    split.__kwdefaults__, split.__defaults__ = theirs.__kwdefaults__, theirs.__defaults__
    split(whole, [[1]], timeout=timedelta(minutes=1))
    assert len(whole.asked) == 1


def test_timeouts_are_set_by_the_name_that_this_torch_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.distributed import distributed_c10d

    from zerotoolsd.trainer.rank.process_group import joined_group, timeout_setter

    def newer(longest: timedelta, group: Any) -> None:
        """As torch 2.14 has it."""

    assert timeout_setter(SimpleNamespace(set_timeout=newer)) is newer
    assert timeout_setter(SimpleNamespace()) is distributed_c10d._set_pg_timeout
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    with joined_group(Rank(index=0, local=0, world_size=1), "cpu") as group:
        group.wait_at_most(timedelta(minutes=1))
