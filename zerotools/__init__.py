"""Tools for sharded training checkpoints, and the client of the training daemon.

    import zerotools

    found = zerotools.inspect("output/checkpoint-2000")
    zerotools.consolidate("output/checkpoint-2000", "model", dtype="bf16", progress=True)

The functions are those of the command line, with the same options as keywords: `inspect`, `diff`,
`consolidate`, `reshard`, `convert`, `verify`, `salvage`, `thin`, `gather`, `serve`, `delta`,
`apply` and `estimate`. Each returns a frozen dataclass, and its errors are `ZerotoolsError`s.
`open` and `load_state_dict` read tensors. All functions are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerotools.public import (
        ApplyResult,
        BadFile,
        BadRequest,
        CheckpointDiff,
        ConversionResult,
        DeltaResult,
        DiffResult,
        Entry,
        Estimate,
        GatherResult,
        InspectResult,
        ProgressUpdate,
        Reader,
        SalvageResult,
        SeriesDiff,
        ServedCheckpoint,
        ThinResult,
        Unsupported,
        VerifyResult,
        ZerotoolsError,
        apply,
        consolidate,
        convert,
        delta,
        diff,
        diff_series,
        estimate,
        gather,
        inspect,
        load_state_dict,
        open,
        reshard,
        salvage,
        serve,
        thin,
        verify,
    )

    __version__: str
    """The version. It includes the commit if this is not a release (`zerotools.version`)."""

__all__ = [
    "ApplyResult",
    "BadFile",
    "BadRequest",
    "CheckpointDiff",
    "ConversionResult",
    "DeltaResult",
    "DiffResult",
    "Entry",
    "Estimate",
    "GatherResult",
    "InspectResult",
    "ProgressUpdate",
    "Reader",
    "SalvageResult",
    "SeriesDiff",
    "ServedCheckpoint",
    "ThinResult",
    "Unsupported",
    "VerifyResult",
    "ZerotoolsError",
    "__version__",
    "apply",
    "consolidate",
    "convert",
    "delta",
    "diff",
    "diff_series",
    "estimate",
    "gather",
    "inspect",
    "load_state_dict",
    "open",
    "reshard",
    "salvage",
    "serve",
    "thin",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("zerotools.version").version()
    if name in __all__:
        return getattr(import_module("zerotools.public"), name)
    raise AttributeError(f"module 'zerotools' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
