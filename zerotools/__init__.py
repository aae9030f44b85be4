"""Tools for sharded training checkpoints, and the client of the training daemon.

`open` and `load_state_dict` read any checkpoint that the command line reads, `verify` checks one,
`diff` compares two, `salvage` exports what is whole of a damaged one, and `plan_thin` and `thin`
drop the state of its optimizer. `estimate` predicts the memory of a training. They are imported
when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerotools.public import (
        BadFile,
        BadRequest,
        Entry,
        Reader,
        Unsupported,
        ZerotoolsError,
        diff,
        estimate,
        load_state_dict,
        open,
        plan_thin,
        salvage,
        thin,
        verify,
    )

    __version__: str
    """The version, with the commit where this is no release (`zerotools.version`)."""

__all__ = [
    "BadFile",
    "BadRequest",
    "Entry",
    "Reader",
    "Unsupported",
    "ZerotoolsError",
    "__version__",
    "diff",
    "estimate",
    "load_state_dict",
    "open",
    "plan_thin",
    "salvage",
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
