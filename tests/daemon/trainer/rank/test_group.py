"""How ranks leave their group: together, but for one that fails."""

from __future__ import annotations

import os
from typing import Any

import pytest

from zerotoolsd.trainer.rank.settings import Rank

pytestmark = pytest.mark.torch


def test_a_rank_that_fails_does_not_wait_for_the_others_to_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch.distributed as dist

    from zerotoolsd.trainer.rank.group import joined

    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    alone = Rank(index=0, local=0, world_size=1)
    with joined(alone, "cpu") as group:
        assert group.gathered("here") == ["here"]
    assert not dist.is_initialized()
    with pytest.raises(ZeroDivisionError), joined(alone, "cpu"):
        raise ZeroDivisionError
    try:
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gloo_stays_on_this_machine_on_every_device(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    import torch
    import torch.distributed as dist

    from zerotools.core.errors import BadRequest
    from zerotoolsd.trainer.rank.group import join, stay_on_this_machine

    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    try:
        join(Rank(index=0, local=64, world_size=1), device)
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


def longest(group: Any) -> float:
    """Seconds that a group waits."""
    import torch

    seconds: float = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    return seconds


def test_a_start_may_take_longer_than_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from zerotoolsd.trainer.rank.group import (
        CONTROL_TIMEOUT,
        START_TIMEOUT,
        STEP_TIMEOUT,
        control_group,
        joined,
    )

    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    with joined(Rank(index=0, local=0, world_size=1), "cpu") as group:
        world = dist.group.WORLD
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
        groups = [world, *(mesh.get_group(number) for number in range(2))]
        control = [group.control, control_group()]
        assert longest(world) == START_TIMEOUT.total_seconds()
        for limit in (START_TIMEOUT, STEP_TIMEOUT):
            group.wait_at_most(limit)
            assert {longest(each) for each in groups} == {limit.total_seconds()}
            assert {longest(each) for each in control} == {CONTROL_TIMEOUT.total_seconds()}
