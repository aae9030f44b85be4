"""The port at which ranks meet: theirs from when it is chosen until they have ended."""

from __future__ import annotations

import errno
import json
import os
import socket
from contextlib import closing

import pytest

from zerotoolsd.supervisor.attempt_plan import Plan
from zerotoolsd.supervisor.start_ranks import hold_port, variables_of
from zerotoolsd.supervisor.transient_os_errors import is_transient

IP_LOCAL_PORT_RANGE = 51
"""Of which ports the kernel chooses for this socket, lowest and highest (ip(7), Linux 6.3)."""


def one_that_gets_a_port_of(number: int, *, reuse: bool) -> socket.socket:
    """As any socket that asks for any port, where only this one is left."""
    found = socket.socket()
    if reuse:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        both = (number | number << 16).to_bytes(4, "little")
        found.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, both)
    except OSError:
        found.close()
        pytest.skip("this kernel has no IP_LOCAL_PORT_RANGE (Linux 6.3)")
    return found


@pytest.mark.parametrize("reuse", [False, True])
def test_nobody_else_is_given_the_port(reuse: bool) -> None:
    with closing(hold_port()) as held, socket.create_server(("127.0.0.1", 0)) as server:
        number = held.getsockname()[1]
        with one_that_gets_a_port_of(number, reuse=reuse) as other:
            with pytest.raises(OSError, match="in use") as refused:
                other.bind(("127.0.0.1", 0))
            assert refused.value.errno == errno.EADDRINUSE
        with (
            one_that_gets_a_port_of(number, reuse=reuse) as other,
            pytest.raises(OSError, match="assign"),
        ):
            other.connect(server.getsockname())


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_rank_listens_there_all_the_same(address: str) -> None:
    with closing(hold_port()) as held:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        if family == socket.AF_INET6 and held.family != family:
            pytest.skip("this machine has no IPv6")
        with socket.socket(family) as rank:
            rank.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            rank.bind((address, held.getsockname()[1]))
            rank.listen()
            with socket.create_connection(("127.0.0.1", held.getsockname()[1])):
                rank.accept()[0].close()


@pytest.mark.torch
def test_torch_meets_there() -> None:
    from torch.distributed import TCPStore

    with closing(hold_port()) as held:
        for libuv in (True, False):
            port = held.getsockname()[1]
            store = TCPStore("127.0.0.1", port, 1, True, use_libuv=libuv)
            store.set("a", "b")
            assert store.get("a") == b"b"
            del store


@pytest.mark.parametrize("answer", [errno.EAFNOSUPPORT, errno.EPERM, errno.EMFILE])
def test_a_machine_without_ipv6_has_ports_and_one_without_descriptors_says_so(
    monkeypatch: pytest.MonkeyPatch, answer: int
) -> None:
    real = socket.socket

    def old(family: int = socket.AF_INET, *rest: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(answer, os.strerror(answer))
        return real(family, *rest)

    monkeypatch.setattr("zerotoolsd.supervisor.start_ranks.socket.socket", old)
    if answer == errno.EMFILE:
        with pytest.raises(OSError, match="Too many open files") as refused:
            hold_port()
        assert is_transient(refused.value)
        return
    with closing(hold_port()) as held:
        assert held.family == socket.AF_INET


def test_the_ranks_of_a_node_are_counted_among_all() -> None:
    plan = Plan(
        job_id=1,
        attempt=1,
        token="t",
        argv=("true",),
        env={},
        cwd="/",
        umask=0,
        world_size=4,
        gpu_uuids=(),
        grace_seconds=1,
        straggler_seconds=1,
        log_limit_bytes=1,
    )
    alone = variables_of(plan, 3, 4711)
    assert (alone["RANK"], alone["WORLD_SIZE"], alone["MASTER_PORT"]) == ("3", "4", "4711")
    assert "GROUP_RANK" not in alone
    meeting = {"host": "10.0.0.1", "port": 29500, "nodes": 3, "node_rank": 2}
    stored = Plan.from_json(json.loads(json.dumps(plan._replace(meeting=meeting).to_json())))
    assert variables_of(stored, 3, 4711) == {
        "RANK": "11",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "12",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "2",
        "GROUP_WORLD_SIZE": "3",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
    }
