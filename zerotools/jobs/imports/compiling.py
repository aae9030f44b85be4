"""accelerate's `dynamo_config`: whether the model is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.jobs.imports.reading import Reading
from zerotools.jobs.imports.report import Outcome

_KEY = "train.compile"


def read_compile(reading: Reading) -> None:
    """Map the backend; how dynamo goes about it is left to it."""
    given = reading.take("dynamo_config")
    if given is None:
        return
    options: Mapping[str, Any] = given.value if isinstance(given.value, Mapping) else {}
    backend = str(options.get("dynamo_backend", given.value or "no")).upper()
    if not options and backend == "{}":
        backend = "NO"
    if backend in ("NO", "FALSE", "NONE", ""):
        reading.row(Outcome.IGNORED, given, None, "nothing is compiled")
    elif backend == "INDUCTOR":
        reading.map(given, _KEY, True, "block by block; how is left to torch.compile")
    else:
        what = (
            f"{given.said}: dynamo_backend {backend}: the engine torch compiles by INDUCTOR alone"
        )
        reading.findings.unsupported.append(what)
