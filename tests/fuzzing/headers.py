"""The header of a safetensors file: every tensor inside the file, none over another, and the same
as the reference implementation finds."""

from __future__ import annotations

from itertools import pairwise

from tests.fuzzing import scratch
from zerotools.core.errors import ZerotoolsError
from zerotools.formats.safetensors.header import Header, read_header


def check(data: bytes) -> None:
    """`data` is the file."""
    path = scratch.scratch("safetensors") / "a.safetensors"
    path.write_bytes(data)
    header: Header | None = None
    problem: ZerotoolsError | None = None
    try:
        header = read_header(path)
    except ZerotoolsError as error:
        assert str(error).startswith(str(path)), str(error)
        problem = error
    if header is not None:
        spans = sorted((each.begin, each.end) for each in header.entries.values())
        assert all(0 <= begin <= end <= len(data) for begin, end in spans)
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
    if scratch.PEERS:
        from tests.fuzzing.peers import safetensors_reader

        safetensors_reader.compare(data, header, problem)
