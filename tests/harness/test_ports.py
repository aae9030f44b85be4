from __future__ import annotations

import os
import socket
from contextlib import suppress
from itertools import count

import pytest

from harness import ports
from harness.ports import CHOSEN_BY_THE_KERNEL, free_port


def test_a_port_is_free_and_not_one_that_the_kernel_gives_to_others() -> None:
    first = int(CHOSEN_BY_THE_KERNEL.read_text("ascii").split()[0])
    found = [free_port() for _ in range(20)]
    assert len(set(found)) == 20
    assert first <= 10_240 or all(1024 < port < first for port in found)


def test_one_that_somebody_listens_on_is_passed_over() -> None:
    before = free_port()
    with socket.socket() as other:
        with suppress(OSError):  # somebody has it already
            other.bind(("127.0.0.1", before + 1))
        assert free_port() != before + 1


def test_a_forked_process_begins_at_other_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = free_port()
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    found = [free_port() for _ in range(3)]
    monkeypatch.undo()
    assert parent not in found
    assert free_port() not in found


def test_one_that_another_process_has_got_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process may not listen there yet."""
    reading, writing = os.pipe()
    ending, end = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, str(free_port()).encode())
            os.close(end)
            os.read(ending, 1)
        finally:
            os._exit(0)
    taken = int(os.read(reading, 16))
    monkeypatch.setitem(ports._numbers, os.getpid(), count(taken - ports.LOWEST))
    assert free_port() != taken
    for descriptor in (reading, writing, ending, end):
        os.close(descriptor)
    os.waitpid(child, 0)
