"""The layout of one torch.save archive with copied tensors and a few known numbers."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Key, Tensor
from zerotools.core.dtypes import FLOAT32
from zerotools.core.target import Checksum, FilePlan, LiteralBytes
from zerotools.formats.torchfile.writing.lay_out import stored_tensor
from zerotools.io.torchzip import archive_layout as archives
from zerotools.io.torchzip.pickle_values import StoredTensor
from zerotools.io.torchzip.pickles import dumps


@dataclass
class OneFile:
    """The storages of file `name` in order, each a tensor of the source or a known number."""

    name: str
    tensors: dict[Key, Tensor] = field(default_factory=dict)
    known: dict[Key, Tensor] = field(default_factory=dict)
    _order: list[tuple[Key, Tensor, bytes | None]] = field(default_factory=list)

    def tensor(self, key: Key, tensor: Tensor) -> StoredTensor:
        return self._add(key, tensor, None)

    def number(self, key: Key, value: float) -> StoredTensor:
        """Return a 0-d float32 tensor."""
        return self._add(key, Tensor(FLOAT32, (), ()), struct.pack("<f", value))

    def _add(self, key: Key, tensor: Tensor, data: bytes | None) -> StoredTensor:
        self._order.append((key, tensor, data))
        return stored_tensor(str(len(self._order) - 1), tensor)

    def plan(self, tree: Mapping[str, Any]) -> FilePlan:
        """Return the file of `tree`; afterwards `tensors` and `known` say where everything is in
        it."""
        crcs = {n: crc32(data) for n, (_, _, data) in enumerate(self._order) if data is not None}
        layout = archives.lay_out(dumps(tree), [t.nbytes for _, t, _ in self._order], crcs)
        literals = [LiteralBytes(at, data) for at, data in layout.literals]
        checksums = []
        payloads = iter(layout.payloads)
        for key, tensor, data in self._order:
            payload = next(payloads) if tensor.nbytes else None
            at = payload.offset if payload is not None else 0
            placed = Tensor(
                tensor.dtype, tensor.shape, (Chunk(Box.whole(tensor.shape), self.name, at),)
            )
            if data is not None:
                literals.append(LiteralBytes(at, data))
                self.known[key] = placed
                continue
            self.tensors[key] = placed
            if payload is not None:
                checksums.append(Checksum(at, payload.length, payload.crc_at))
        return FilePlan(layout.length, literals, checksums=checksums)
