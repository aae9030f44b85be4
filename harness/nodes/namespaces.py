"""Two network namespaces that are joined by a pair of interfaces, like two machines with a
cable.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from harness.started import run

ADDRESSES = ("10.77.13.1", "10.77.13.2")
_SECONDS = 20.0


@contextmanager
def two_namespaces() -> Iterator[tuple[str, ...]]:
    """Make two namespaces, yield their names, and remove them at the end. Needs root and
    iproute2.
    """
    names = tuple(f"zerotools-{os.getpid()}-{node}" for node in (0, 1))
    made: list[str] = []
    try:
        for name in names:
            _ip("netns", "add", name)
            made.append(name)
            _ip("-n", name, "link", "set", "lo", "up")
        ends = [(f"zt{node}", name) for node, name in enumerate(names)]
        peer = ("peer", "name", ends[1][0], "netns", ends[1][1])
        _ip("link", "add", ends[0][0], "netns", ends[0][1], "type", "veth", *peer)
        for (end, name), address in zip(ends, ADDRESSES, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            _ip("-n", name, "link", "set", end, "up")
        yield names
    finally:
        for name in made:
            _ip("netns", "del", name)


def inside(name: str, command: Sequence[str]) -> list[str]:
    """Return `command`, extended so that it runs in the namespace `name`."""
    return ["ip", "netns", "exec", name, *command]


def cut(name: str, *, node: int) -> None:
    """Disconnect the machine `node`, in the namespace `name`, from the other machine."""
    _ip("-n", name, "link", "set", f"zt{node}", "down")


def join(name: str, *, node: int) -> None:
    """Connect the machine again after `cut`."""
    _ip("-n", name, "link", "set", f"zt{node}", "up")


def _ip(*words: str) -> None:
    run(["ip", *words], timeout=_SECONDS, check=True, capture_output=True)
