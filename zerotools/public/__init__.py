"""The Python interface. `import zerotools` is enough.

Each function takes the options of its command as keywords, and returns a frozen value. A module is
imported when one of its names is first asked for.

lazy_reader      open, load_state_dict: a thin lazy reader around a checkpoint
inspecting       inspect: the contents of a checkpoint
conversions      consolidate, reshard, convert
verifying        verify: check whether a checkpoint is whole
comparing        diff: compare two checkpoints
salvaging        salvage: export what is whole of a damaged one
thin_steps       thin: drop the state of optimizers
gathering        gather: shards that lie on several nodes
serving          serve: a checkpoint as a model over HTTP
memory_estimate  estimate: the memory of a training
options          options of functions and commands
carry_out        the common part of the functions that write
results          their results
progress         callbacks and bars
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerotools.core.errors import BadFile, BadRequest, Unsupported, ZerotoolsError
    from zerotools.jobs.estimating.estimating import Estimate
    from zerotools.ops.comparison.result import CheckpointDiff
    from zerotools.public.comparing import diff
    from zerotools.public.conversions import consolidate, convert, reshard
    from zerotools.public.gathering import GatherResult, gather
    from zerotools.public.inspecting import InspectResult, inspect
    from zerotools.public.lazy_reader import Entry, Reader, load_state_dict, open
    from zerotools.public.memory_estimate import estimate
    from zerotools.public.progress import ProgressUpdate
    from zerotools.public.results import ConversionResult
    from zerotools.public.salvaging import SalvageResult, salvage
    from zerotools.public.serving import ServedCheckpoint, serve
    from zerotools.public.thin_steps import ThinResult, thin
    from zerotools.public.verifying import VerifyResult, verify

_MODULES = {
    "zerotools.core.errors": ("BadFile", "BadRequest", "Unsupported", "ZerotoolsError"),
    "zerotools.jobs.estimating.estimating": ("Estimate",),
    "zerotools.ops.comparison.result": ("CheckpointDiff",),
    "zerotools.public.comparing": ("diff",),
    "zerotools.public.conversions": ("consolidate", "convert", "reshard"),
    "zerotools.public.gathering": ("GatherResult", "gather"),
    "zerotools.public.inspecting": ("InspectResult", "inspect"),
    "zerotools.public.lazy_reader": ("Entry", "Reader", "load_state_dict", "open"),
    "zerotools.public.memory_estimate": ("estimate",),
    "zerotools.public.progress": ("ProgressUpdate",),
    "zerotools.public.results": ("ConversionResult",),
    "zerotools.public.salvaging": ("SalvageResult", "salvage"),
    "zerotools.public.serving": ("ServedCheckpoint", "serve"),
    "zerotools.public.thin_steps": ("ThinResult", "thin"),
    "zerotools.public.verifying": ("VerifyResult", "verify"),
}
"""The names of the interface, by the module that has them."""

__all__ = [
    "BadFile",
    "BadRequest",
    "CheckpointDiff",
    "ConversionResult",
    "Entry",
    "Estimate",
    "GatherResult",
    "InspectResult",
    "ProgressUpdate",
    "Reader",
    "SalvageResult",
    "ServedCheckpoint",
    "ThinResult",
    "Unsupported",
    "VerifyResult",
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
