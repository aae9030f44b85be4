"""safetensors' own reader, in Rust."""

from __future__ import annotations

from typing import Any

import safetensors

from zerotools.core.errors import BadFile, Unsupported, ZerotoolsError
from zerotools.formats.safetensors.header import Header

ONLY_OURS: tuple[str, ...] = ()
"""Parts of what the peer says where only ours accepts a file: why that is right."""

ONLY_THEIRS = (
    "a key occurs twice",  # the last one counts there: two readers may see two models
    "made to fill the memory",
    "DCP_SHARDING_INFO",  # which the peer hands on as a text
    "nested too deeply",
    "element type",  # of types below a byte, which zerotools does not move
    "is not JSON",
)
"""Parts of what ours says where only the peer accepts a file."""


def compare(data: bytes, header: Header | None, problem: ZerotoolsError | None) -> None:
    """`header` is what ours read of `data`, or `problem` what it refused it for."""
    theirs: list[Any] | None = None
    why = ""
    try:
        theirs = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        why = str(error)
    if theirs is not None and header is not None:
        assert {name for name, _ in theirs} == header.entries.keys()
        for name, found in theirs:
            ours = header.entries[name]
            assert found["dtype"] == ours.dtype.safetensors, name
            assert tuple(found["shape"]) == ours.shape, name
            assert bytes(found["data"]) == data[ours.begin : ours.end], name
    elif header is not None:
        assert any(part in why for part in ONLY_OURS), f"only ours accepts it: {why}"
    elif theirs is not None:
        assert isinstance(problem, BadFile | Unsupported)
        assert any(part in str(problem) for part in ONLY_THEIRS), f"only theirs accepts: {problem}"
