"""safetensors files for tests, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def file_bytes(header: Any, data: bytes = b"") -> bytes:
    """A file of any header: text as it is, anything else as JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    """One tensor in a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_file(path: Path, tensors: dict[str, bytes]) -> Path:
    """A file of one-dimensional uint8 tensors."""
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = entry("U8", [len(data)], at, at + len(data))
        at += len(data)
    path.write_bytes(file_bytes(header, b"".join(tensors.values())))
    return path
