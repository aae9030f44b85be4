"""accelerate's `dynamo_config` and DeepSpeed's `compile`: whether the model is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.jobs.imports.reading.reader import ConfigReading
from zerotools.jobs.imports.reading.report import KeyOutcome

_KEY = "train.compile"


def read_compile(reading: ConfigReading) -> None:
    """Map the backend; how dynamo goes about it is left to it."""
    given = reading.take("dynamo_config")
    if given is None:
        return
    options: Mapping[str, Any] = given.value if isinstance(given.value, Mapping) else {}
    backend = str(options.get("dynamo_backend", given.value or "no")).upper()
    if not options and backend == "{}":
        backend = "NO"
    if backend in ("NO", "FALSE", "NONE", ""):
        reading.row(KeyOutcome.IGNORED, given, None, "nothing is compiled")
    elif backend == "INDUCTOR":
        reading.map(given, _KEY, True, "block by block; how is left to torch.compile")
    else:
        what = (
            f"{given.said}: dynamo_backend {backend}: the engine torch compiles only with INDUCTOR"
        )
        reading.findings.unsupported.append(what)


def read_compile_section(reading: ConfigReading) -> None:
    """Map DeepSpeed's `compile`: `deepcompile`, or in releases before 0.14.4 `enabled`."""
    if reading.engine == "deepspeed":
        return
    names = ("compile.deepcompile", "compile.enabled", "compile.disable")
    switches = {name: given for name in names if (given := reading.take(name)) is not None}
    on = {n: bool(g.value) is not n.endswith("disable") for n, g in switches.items()}
    compiles = any(on[n] for n in on) and all(on.get(n, True) for n in names[1:])
    for name, given in switches.items():
        if compiles and on[name]:
            reading.map(given, _KEY, True, "block by block, by torch.compile")
        else:
            reading.row(KeyOutcome.IGNORED, given, None, "nothing is compiled")
    backend = reading.take("compile.backend")
    if backend is None:
        return
    if compiles and backend.value not in (None, "inductor"):
        reading.refuse(backend, "the engine torch compiles only with inductor")
    else:
        reading.row(KeyOutcome.IGNORED, backend, None, "as the engine torch does it")
