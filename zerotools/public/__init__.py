"""The Python interface. `import zerotools` is enough.

Each function takes the options of its command as keywords, and returns a frozen value. A module is
imported when one of its names is first asked for.

lazy_reader      open, load_state_dict: a thin lazy reader around a checkpoint
inspecting       inspect: what a checkpoint holds
conversions      consolidate, reshard, convert
verifying        verify: whether a checkpoint is whole
comparing        diff: where two checkpoints differ
salvaging        salvage: what is whole of a damaged one
thin_steps       thin: drop the state of optimizers
gathering        gather: shards that lie on several nodes
serving          serve: a checkpoint as a model over HTTP
memory_estimate  estimate: the memory of a training
options          how options are declared, for functions and commands
carry_out        what the functions that write have in common
results          what they return
progress         how far they are, for callbacks and bars
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerotools.core.errors import BadFile, BadRequest, Unsupported, ZerotoolsError
    from zerotools.public.comparing import diff
    from zerotools.public.conversions import consolidate, convert, reshard
    from zerotools.public.gathering import gather
    from zerotools.public.inspecting import inspect
    from zerotools.public.lazy_reader import Entry, Reader, load_state_dict, open
    from zerotools.public.memory_estimate import estimate
    from zerotools.public.progress import ProgressUpdate
    from zerotools.public.salvaging import salvage
    from zerotools.public.serving import serve
    from zerotools.public.thin_steps import thin
    from zerotools.public.verifying import verify

_MODULES = {
    "zerotools.core.errors": ("BadFile", "BadRequest", "Unsupported", "ZerotoolsError"),
    "zerotools.public.comparing": ("diff",),
    "zerotools.public.conversions": ("consolidate", "convert", "reshard"),
    "zerotools.public.memory_estimate": ("estimate",),
    "zerotools.public.gathering": ("gather",),
    "zerotools.public.inspecting": ("inspect",),
    "zerotools.public.lazy_reader": ("Entry", "Reader", "load_state_dict", "open"),
    "zerotools.public.progress": ("ProgressUpdate",),
    "zerotools.public.salvaging": ("salvage",),
    "zerotools.public.serving": ("serve",),
    "zerotools.public.thin_steps": ("thin",),
    "zerotools.public.verifying": ("verify",),
}
"""The names of the interface, by the module that has them."""

__all__ = [
    "BadFile",
    "BadRequest",
    "Entry",
    "ProgressUpdate",
    "Reader",
    "Unsupported",
    "ZerotoolsError",
    "consolidate",
    "convert",
    "diff",
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
    from zerotools.public.options.option import describe_options

    for module, names in _MODULES.items():
        if name in names:
            found = getattr(import_module(module), name)
            return describe_options(found) if callable(found) else found
    raise AttributeError(f"module 'zerotools.public' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
