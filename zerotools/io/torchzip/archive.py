"""A torch.save archive: the tree that was saved, and where each storage's bytes lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.files.allowance import Beside, may_be_read
from zerotools.io.files.damage import tolerate
from zerotools.io.torchzip.pickle_values import Storage
from zerotools.io.torchzip.recovery import recovered
from zerotools.io.torchzip.unpickle import LARGEST_PICKLE, loads
from zerotools.io.torchzip.window import FileRange
from zerotools.io.torchzip.zip_directory import ZipEntry, payload_of, read_directory, read_entry

PICKLE = "data.pkl"


def records_of(window: FileRange) -> dict[str, ZipEntry]:
    """Return the records by the zip's directory; if it is lost and lost bytes are tolerated, those
    that have a header.

    Raises:
        BadFile, Unsupported: as `read_directory`.
    """
    try:
        return read_directory(window)
    except (BadFile, Unsupported) as error:  # a flipped bit may look unsupported
        tolerate(window.path, error)
        records = recovered(window)
        if PICKLE not in records:
            raise
        return records


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive in `window`; `records` are its zip's, by name without the top directory."""

    window: FileRange
    records: dict[str, ZipEntry]

    @classmethod
    def open(cls, window: FileRange) -> Archive:
        """Read the zip directory, and refuse what cannot be addressed.

        Raises:
            BadFile: the zip is damaged, or is not one of torch.save's.
            Unsupported: it is compressed, or was written on a big-endian machine.
        """
        archive = cls(window, records_of(window))
        if PICKLE not in archive.records:
            raise BadFile(f"{window} is a zip without data.pkl: torch.save did not write it")
        archive._refuse_big_endian()
        return archive

    def _refuse_big_endian(self) -> None:
        order = self.records.get("byteorder")
        if order is None:
            return
        try:
            is_little = order.length <= 6 and read_entry(self.window, order) == b"little"
        except BadFile as error:
            tolerate(self.window.path, error)
            return
        if not is_little:
            raise Unsupported(
                f"{self.window} was written on a big-endian machine; save it on another"
            )

    def tree(self, beside: Beside | None = None) -> Any:
        """Return the saved tree. Tensors are `StoredTensor`, foreign objects `Opaque`. Its size
        limit is that for `beside` bytes of data: by default those in the archive's file."""
        record = self.records[PICKLE]
        if record.length > LARGEST_PICKLE:
            raise Unsupported(f"{self.window}: its pickle has {record.length} bytes")
        if beside is None:
            beside = self.window.data_beside(record.length)
        if not may_be_read(record.length, beside):
            raise BadFile(
                f"{self.window}: its pickle has {record.length} bytes, more than any real "
                f"checkpoint's of {beside()} bytes of data: it is made to fill the memory; do not "
                "use it"
            )
        return loads(read_entry(self.window, record), source=self.window, beside=beside)

    def payload(self, storage: Storage) -> int:
        """Return the offset, in the file, of the first byte of a storage.

        Raises:
            BadFile: the archive has no record of it, or one of another size.
        """
        record = self.records.get(f"data/{storage.key}")
        if record is None:
            raise BadFile(f"{self.window} has no record of storage {storage.key!r}")
        if record.length != storage.nbytes:
            raise BadFile(
                f"{self.window}: storage {storage.key!r} has {record.length} bytes, but its "
                f"pickle gives {storage.nbytes}"
            )
        return self.window.offset + payload_of(self.window, record)
