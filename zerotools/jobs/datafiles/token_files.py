"""Read the headers of files of token ids: numpy's `.npy`, or raw integers with a dtype that the job
file names.

Standard library only.
"""

from __future__ import annotations

import ast
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.io.files.regular_files import open_regular
from zerotools.jobs.jobfile_tables.data import TOKEN_TYPES

ITEM_BYTES = {"uint16": 2, "uint32": 4, "int32": 4, "int64": 8}
_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 1 << 16
_NUMPY_NAMES = {"u2": "uint16", "u4": "uint32", "i4": "int32", "i8": "int64"}


@dataclass(frozen=True)
class TokenArray:
    """Position of the token ids in a file: `count` little-endian integers of `type`, from byte
    `offset` of the file `path`.
    """

    path: Path
    offset: int
    count: int
    type: str


def read_token_header(path: Path, stated: str | None) -> TokenArray:
    """Find the position and the type of the token ids in the file `path`.

    `stated` is the type of the ids in a file of raw integers, because such a file does not record
    the type.

    Raises:
        BadFile: the file cannot be read, is not a regular file, is truncated, or does not hold ids.
    """
    try:
        with os.fdopen(open_regular(path, is_source=False), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if path.suffix != ".npy":
                return _bare(path, size, stated)
            start = file.read(12)
            if len(start) < 12 or not start.startswith(_MAGIC):
                raise BadFile(
                    f"{path} is not a .npy file, because it does not begin with {_MAGIC!r}; save "
                    "the array again, or rename the file if it holds only token ids"
                )
            wide = start[6] >= 2
            length = struct.unpack("<I" if wide else "<H", start[8 : 12 if wide else 10])[0]
            if length > _LONGEST_HEADER:
                raise BadFile(
                    f"{path}: its header has {length} bytes, but may have at most "
                    f"{_LONGEST_HEADER}; save the array again"
                )
            offset = (12 if wide else 10) + length
            file.seek(offset - length)
            return _numpy(path, size, offset, file.read(length))
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None


def _bare(path: Path, size: int, stated: str | None) -> TokenArray:
    if stated is None:
        raise BadFile(f"{path} does not record the type of its token ids; set data.token_type")
    if size % ITEM_BYTES[stated]:
        raise BadFile(
            f"{path} has {size} bytes, but needs a multiple of {ITEM_BYTES[stated]} "
            f'(data.token_type = "{stated}"); set another data.token_type, or copy the file again '
            "if it is truncated"
        )
    return TokenArray(path, 0, size // ITEM_BYTES[stated], stated)


def _numpy(path: Path, size: int, offset: int, header: bytes) -> TokenArray:
    try:
        tree = ast.literal_eval(header.decode("latin-1"))
        kind, shape = str(tree["descr"]), tuple(tree["shape"])
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError):
        raise BadFile(
            f"{path}: its header does not describe a .npy array; save the array again"
        ) from None
    name = _NUMPY_NAMES.get(kind[1:]) if kind[:1] in ("<", "=") else None
    if name is None:
        raise BadFile(
            f"{path} holds values of type {kind!r}, but token ids are {', '.join(TOKEN_TYPES)}, "
            "little-endian; save the array as one of these types"
        )
    if len(shape) != 1 or type(shape[0]) is not int or shape[0] < 0:
        raise BadFile(
            f"{path} has shape {shape}, but token ids need one dimension; save the array "
            "with one dimension"
        )
    need = offset + shape[0] * ITEM_BYTES[name]
    if size < need:
        raise BadFile(
            f"{path} has {size} bytes, but its header needs {need}; copy or save the file again"
        )
    return TokenArray(path, offset, shape[0], name)
