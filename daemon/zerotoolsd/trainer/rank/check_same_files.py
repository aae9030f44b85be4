"""Checks that all nodes of a job have the same files.

Each node may have its own copies of the files. Reading terabytes on every node would take too long.
So only the size and samples of each file are compared: the beginning, the end, and some parts
between them. If a model or a data set is another version, its size, its header or nearly all of its
bytes differ.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.rank.process_group import WorldGroup

ENDS = 64 * 1024
"""Number of bytes that are read at each end of a file."""
PLACES, SAMPLE = 32, 4096
_UNREADABLE = "cannot be read: "


def sampled_digest(path: Path) -> str:
    """Return a digest of the size and of samples of the file `path`. Raises OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        digest.update(os.pread(file.fileno(), ENDS, 0))
        digest.update(os.pread(file.fileno(), ENDS, max(0, size - ENDS)))
        for place in range(1, PLACES):
            digest.update(os.pread(file.fileno(), SAMPLE, size * place // PLACES))
    return digest.hexdigest()[:16]


def check_same_files(files: Mapping[str, Path], group: WorldGroup) -> None:
    """Compare `files` (name -> path) with the same files of the other nodes.

    All ranks call it together.

    Raises:
        BadRequest: a file is missing on a node, or differs from the file of node 0.
    """
    if group.rank.nodes == 1:
        return
    own = (
        {}
        if not group.rank.leads_node
        else {n: _digest_or_error(path) for n, path in files.items()}
    )
    everywhere = group.gathered(own)[:: group.rank.node_ranks]
    first = everywhere[0]
    for node, found in enumerate(everywhere):
        for name in first | found:
            if found.get(name) != first.get(name):
                raise BadRequest(_difference(name, node, found.get(name), first.get(name)))


def _digest_or_error(path: Path) -> str:
    try:
        return sampled_digest(path)
    except OSError as error:
        return f"{_UNREADABLE}{error.strerror}"


def _difference(name: str, node: int, there: str | None, first: str | None) -> str:
    for number, digest in ((node, there), (0, first)):
        if digest is None:
            return f"{name} is missing on node {number}, but another node has it"
        if digest.startswith(_UNREADABLE):
            return f"{name} on node {number} {digest}, but another node can read it"
    return f"{name} differs between node {node} and node 0"
