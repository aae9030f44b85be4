"""The card of a node of a job when the nodes meet, and the properties that nodes must share."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch

import zerotools
from zerotools.core.counts import counted

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class NodeCard:
    """The card of a node. `job` has a digest of each table that all nodes must share."""

    token: str = ""
    host: str = ""
    boot_id: str = ""
    ranks: int = 0
    zerotools: str = "of an unknown version"
    torch: str = "of an unknown version"
    time: float = 0.0
    job: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Its form in the store."""
        return json.dumps(asdict(self), sort_keys=True)


def card_of(text: str) -> NodeCard:
    """Return the card in `text`, which another version may have written.

    A missing value is reported as a difference, in words.
    """
    tree = json.loads(text)
    known = {each.name for each in fields(NodeCard)}
    return NodeCard(**{name: value for name, value in tree.items() if name in known})


def own_card(token: str, ranks: int, job: Mapping[str, str]) -> NodeCard:
    """Return the card of this node, for the attempt with `token`."""
    versions = (zerotools.__version__, str(torch.__version__))
    return NodeCard(
        token, socket.gethostname(), boot_id(), ranks, *versions, time.time(), dict(job)
    )


def disagreement(cards: Mapping[int, NodeCard]) -> str | None:
    """Return the difference between the nodes; None without one."""
    first = cards[0]
    for node, card in sorted(cards.items()):
        who = f"node {node} ({card.host})"
        for name, what in (("zerotools", "zerotools"), ("torch", "torch")):
            ours, theirs = getattr(first, name), getattr(card, name)
            if ours != theirs:
                return (
                    f"{who} has {what} {theirs}, and node 0 ({first.host}) {ours}; install the "
                    "same version on all nodes"
                )
        if card.ranks != first.ranks:
            return (
                f"{who} has {counted(card.ranks, 'rank')}, and node 0 ({first.host}) "
                f"{first.ranks}; set gpus or ranks to the same number on all nodes"
            )
        differing = [name for name in first.job if card.job.get(name) != first.job[name]]
        if differing:
            tables = ", ".join(differing)
            return (
                f"{who} has another job than node 0 ({first.host}): {tables} differ; submit the "
                "same job file on all nodes"
            )
    return None


def boot_id() -> str:
    """Return the id of this machine's boot: two nodes with the same one are one machine."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return socket.gethostname()
