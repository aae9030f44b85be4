"""The check that the nodes of a job have the same files, if each may have its own copies.

Reading terabytes on every node, only to compare them, would take as long as the training's start.
So a file is identified by its size and by samples: its beginning, its end, and some parts in
between. Another version of a model or of a data set differs in its size, its header or nearly
everywhere.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.rank.process_group import WorldGroup

ENDS = 64 * 1024
"""Bytes of each end of a file that are read."""
PLACES, SAMPLE = 32, 4096
_UNREADABLE = "cannot be read: "


def sampled(path: Path) -> str:
    """Return the digest of a file's samples. Raises OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        digest.update(os.pread(file.fileno(), ENDS, 0))
        digest.update(os.pread(file.fileno(), ENDS, max(0, size - ENDS)))
        for place in range(1, PLACES):
            digest.update(os.pread(file.fileno(), SAMPLE, size * place // PLACES))
    return digest.hexdigest()[:16]


def check_same_files(files: Mapping[str, Path], group: WorldGroup) -> None:
    """Compare the files that all nodes have, by their names here. All ranks call it.

    Raises:
        BadRequest: a file of a node differs from that of node 0, or is missing.
    """
    if group.rank.nodes == 1:
        return
    own = {} if not group.rank.leads_node else {n: _told(path) for n, path in files.items()}
    everywhere = group.gathered(own)[:: group.rank.node_ranks]
    first = everywhere[0]
    for node, found in enumerate(everywhere):
        for name in first | found:
            if found.get(name) != first.get(name):
                raise BadRequest(_difference(name, node, found.get(name), first.get(name)))


def _told(path: Path) -> str:
    try:
        return sampled(path)
    except OSError as error:
        return f"{_UNREADABLE}{error.strerror}"


def _difference(name: str, node: int, there: str | None, first: str | None) -> str:
    for number, told in ((node, there), (0, first)):
        if told is None:
            return f"{name} is not there on node {number}, and another node has it"
        if told.startswith(_UNREADABLE):
            return f"{name} {told} on node {number}, and another node reads it"
    return f"{name} is another file on node {node} than on node 0"
