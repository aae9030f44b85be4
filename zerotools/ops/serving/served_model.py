"""The files of a model as a server shows them: their names, sizes and ETags."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from time import time

from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.execution.identity import identity_of

_TYPES = {".json": "application/json", ".txt": "text/plain; charset=utf-8"}
_BYTES = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class ServedFile:
    """`etag` is in quotes, as in HTTP: another source, or another way to export it, has another
    one."""

    name: str
    size: int
    etag: str
    content_type: str


@dataclass(frozen=True)
class ServedModel:
    """`name` is the name of the bucket and the repository. `revision` is of all files, 40
    hexadecimal digits like those of git. `since` is the start of the server, in seconds since 1970.
    """

    name: str
    files: Mapping[str, ServedFile]
    revision: str
    since: float


def served_model(conversion: Conversion, name: str) -> ServedModel:
    """Return the served files of a conversion that is not written."""
    identity = identity_of(
        conversion.source, conversion.target, conversion.request, conversion.stamps
    )
    whole = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    files = {}
    for file, planned in sorted(conversion.target.files.items()):
        own = whole.copy()
        own.update(file.encode("utf-8", "surrogateescape"))
        suffix = file[file.rfind(".") :] if "." in file else ""
        content_type = _TYPES.get(suffix, _BYTES)
        files[file] = ServedFile(file, planned.size, f'"{own.hexdigest()[:32]}"', content_type)
    return ServedModel(name, files, whole.hexdigest()[:40], time())
