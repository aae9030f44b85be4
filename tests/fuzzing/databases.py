"""An OCDBT database of Orbax: every value inside a file of the database, or an error that names the
file."""

from __future__ import annotations

import re
import struct

from tests.fuzzing import scratch
from zerotools.core.errors import ZerotoolsError
from zerotools.formats.orbax.ocdbt import _crc32c, find_values
from zerotools.io.files.directory_entries import stays_below_root
from zerotools.io.files.open_files import OpenFiles

_NODE = b"\x0c\xdb\x20\xde"
_NAME = re.compile(rb"d/[0-9a-f]{32}")
_MEMORY = 2**20


def check(data: bytes) -> None:
    """`data` is the length of the manifest, the manifest, and the data file, which has every name
    that either of them mentions. Lengths and checksums are set here: no fuzzer finds them."""
    size = int.from_bytes(data[:2], "big")
    manifest, nodes = data[2 : 2 + size], data[2 + size :]
    root = scratch.scratch("ocdbt")
    (root / "d").mkdir(exist_ok=True)
    (root / "manifest.ocdbt").write_bytes(sealed(manifest))
    nodes = b"".join(map(sealed, re.split(b"(?=%s)" % re.escape(_NODE), nodes)))
    for name in {*_NAME.findall(data)}:
        (root / name.decode()).write_bytes(nodes)
    try:
        with OpenFiles(root, named_by="the OCDBT database") as files:
            found = find_values(files, root, _MEMORY)
    except ZerotoolsError as error:
        assert str(error).startswith(str(root)), str(error)
        return
    for value in found.values():
        if not isinstance(value, bytes):
            assert 0 <= value.begin <= value.end
            assert stays_below_root(value.file)
    assert sum(len(key) for key in found) <= _MEMORY


def sealed(data: bytes) -> bytes:
    """A manifest or a node with its own length and checksum, if it has a header and a footer."""
    if len(data) < 18:
        return data
    body = data[:4] + struct.pack("<Q", len(data)) + data[12:-4]
    return body + struct.pack("<I", _crc32c(body))
