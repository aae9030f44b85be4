"""A `.pt` whose tree is another, with the bytes of the storages that it still has.

Storages are carried over byte by byte, with the CRC-32 that the zip has for them, so that damage
stays visible. Files of before torch 1.6 have none: theirs is computed when they are written.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from zerotools.core.target import CarriedBytes, Checksum, FilePlan, LiteralBytes
from zerotools.io.torchzip import archive_layout
from zerotools.io.torchzip.pickles import dumps_renumbered
from zerotools.io.torchzip.pt_file import TorchFile


def repacked(file: TorchFile, tree: Any) -> FilePlan:
    """`file` with `tree`, whose storages are its own, in place of its tree.

    Raises:
        BadFile: a storage is not in the file.
        Unsupported: a value that cannot be written to a pickle.
    """
    pickle, storages = dumps_renumbered(tree)
    records = [file.records.get(f"data/{storage.key}") for storage in storages]
    crcs = {n: each.crc for n, each in enumerate(records) if each is not None and each.has_crc}
    sizes = [storage.nbytes for storage in storages]
    # The folder in the archive says which file it is, as torch's do.
    layout = archive_layout.lay_out(pickle, sizes, crcs, folder=PurePosixPath(file.name).stem)
    full = [(n, storage) for n, storage in enumerate(storages) if storage.nbytes]
    carried, checksums = [], []
    for (number, storage), at in zip(full, layout.payloads, strict=True):
        carried.append(CarriedBytes(at.offset, file.path, file.payload(storage), at.length))
        if number not in crcs:
            checksums.append(Checksum(at.offset, at.length, at.crc_at))
    literals = [LiteralBytes(at, data) for at, data in layout.literals]
    return FilePlan(layout.length, literals, carried, checksums)
