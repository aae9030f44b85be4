"""Make output files at their full size, with everything except the bytes that are copied of
tensors."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.target import CarriedBytes, FilePlan
from zerotools.io.files.regular import source_file
from zerotools.io.files.sources import Sources
from zerotools.io.files.transfer import transfer
from zerotools.ops.execution.checksums import checksums, known_parts

_READ_BYTES = 2**20


def create_file(path: Path, file_plan: FilePlan, sources: Sources, *, shared: bool = False) -> None:
    """Make one output file at its full size, with everything but its chunks and checksums. With
    `shared` it may be there: others write what `file_plan` does not have of it.

    Raises:
        BadRequest: the disk is full, or refuses it for another reason.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if _make(path, shared=shared) else "xb") as output:
        try:
            if os.fstat(output.fileno()).st_size != file_plan.size:
                output.truncate(file_plan.size)
            for literal in file_plan.literals:
                output.seek(literal.offset)
                output.write(literal.data)
            output.flush()
        except OSError as error:
            raise BadRequest(
                f"{path} cannot be written: {error.strerror}; free some space, or choose another "
                "output"
            ) from error
        for carried in file_plan.carried:
            _carry(carried, output.fileno(), sources)


def _make(path: Path, *, shared: bool) -> bool:
    """Make a file that others make, too; whether it is one."""
    if shared:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
    return shared


def _carry(carried: CarriedBytes, output: int, sources: Sources) -> None:
    """Take bytes of the source over.

    Raises:
        BadFile: the source is truncated, or another file than it was.
    """
    path, begin, length = carried.source, carried.source_offset, carried.length
    with source_file(path) as source:
        sources.note(path, source.status())
        done = transfer(source, begin, output, carried.offset, length)
    if done < length:
        raise BadFile(
            f"{path} ends at byte {begin + done}, but {begin + length} bytes were expected; it is "
            "truncated"
        )


def complete_file(path: Path, file_plan: FilePlan) -> None:
    """Write the checksums of a file without tensors, which `create_file` made."""
    if not file_plan.checksums:
        return
    with path.open("r+b") as output:

        def crc_of(offset: int, length: int) -> int:
            crc, end = 0, offset + length
            output.seek(offset)
            while offset < end:
                part = output.read(min(_READ_BYTES, end - offset))
                crc, offset = zlib.crc32(part, crc), offset + len(part)
            return crc

        for offset, data in checksums(file_plan.checksums, known_parts(file_plan, crc_of)):
            output.seek(offset)
            output.write(data)
