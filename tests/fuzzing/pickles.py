"""The pickle of a torch.save archive: read without being run, written, and read as the same again.

The archive around it has two storages of 64 bytes each.
"""

from __future__ import annotations

from typing import Any

from tests.fuzzing import scratch
from zerotools.core.errors import Unsupported, ZerotoolsError
from zerotools.io.torchzip.lay_out_archive import ArchiveLayout, lay_out
from zerotools.io.torchzip.pickle_values import walk_values
from zerotools.io.torchzip.pickle_writer import dumps
from zerotools.io.torchzip.unpickle import loads

STORAGES = (bytes(range(64)), bytes(range(64, 128)))


def check(data: bytes) -> None:
    """`data` is the pickle."""
    try:
        tree = loads(data, source="a.pt")
    except ZerotoolsError as error:
        assert str(error).startswith("a.pt: "), str(error)
        _ask_peer(data, error)
        return
    _ask_peer(data, None, tree)
    try:
        first = dumps(tree)
    except Unsupported:
        return
    second = dumps(loads(first, source="a.pt"))
    if not any(
        isinstance(value, set | frozenset) and len(value) > 1 for value in walk_values(tree)
    ):
        assert dumps(loads(second, source="a.pt")) == second  # sets may come in another order


def _ask_peer(data: bytes, error: ZerotoolsError | None, tree: Any = None) -> None:
    if scratch.PEERS:
        from tests.fuzzing.peers import torch_load

        torch_load.compare(archive_of(data), STORAGES, error, tree)


def archive_of(pickle: bytes) -> bytes:
    """A whole file around a pickle."""
    layout: ArchiveLayout = lay_out(pickle, [len(data) for data in STORAGES])
    whole = bytearray(layout.length)
    for at, data in layout.literals:
        whole[at : at + len(data)] = data
    for payload, data in zip(layout.payloads, STORAGES, strict=True):
        whole[payload.offset : payload.offset + payload.length] = data
    return bytes(whole)
