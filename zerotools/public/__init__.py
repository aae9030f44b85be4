"""The Python interface. `import zerotools` is enough.

Each function takes the options of its command as keywords, and returns a frozen dataclass. A module
is imported when one of its names is first used.

lazy_reader                  open, load_state_dict: a thin lazy reader of a checkpoint
inspect_checkpoint           inspect: the contents of a checkpoint
consolidate_and_convert      consolidate, convert: write a checkpoint in another format
reshard_checkpoint           reshard: write a checkpoint for another number of ranks
verify_checkpoint            verify: check whether a checkpoint is whole
compare_checkpoints          diff: compare two checkpoints; diff_series: compare several in order
make_and_apply_deltas        delta, apply: the difference between two models
salvage_weights              salvage: export the undamaged weights of a damaged checkpoint
thin_checkpoints             thin: drop the optimizer state
gather_shards                gather: shards that lie on several nodes
serve_checkpoint             serve: serve a checkpoint as a model over HTTP
estimate_memory              estimate: predict the memory of a training
command_options              options of functions and commands
run_conversion               plan or write a conversion, or one part of it; define its result
progress                     callbacks and progress bars
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerotools.core.errors import BadFile, BadRequest, Unsupported, ZerotoolsError
    from zerotools.jobs.memory_estimates.training_estimate import Estimate
    from zerotools.ops.comparison.diff_result import CheckpointDiff
    from zerotools.public.compare_checkpoints import DiffResult, SeriesDiff, diff, diff_series
    from zerotools.public.consolidate_and_convert import consolidate, convert
    from zerotools.public.estimate_memory import estimate
    from zerotools.public.gather_shards import GatherResult, gather
    from zerotools.public.inspect_checkpoint import InspectResult, inspect
    from zerotools.public.lazy_reader import Entry, Reader, load_state_dict, open
    from zerotools.public.make_and_apply_deltas import ApplyResult, DeltaResult, apply, delta
    from zerotools.public.progress import ProgressUpdate
    from zerotools.public.reshard_checkpoint import reshard
    from zerotools.public.run_conversion import ConversionResult
    from zerotools.public.salvage_weights import SalvageResult, salvage
    from zerotools.public.serve_checkpoint import ServedCheckpoint, serve
    from zerotools.public.thin_checkpoints import ThinResult, thin
    from zerotools.public.verify_checkpoint import VerifyResult, verify

_MODULES = {
    "zerotools.core.errors": ("BadFile", "BadRequest", "Unsupported", "ZerotoolsError"),
    "zerotools.jobs.memory_estimates.training_estimate": ("Estimate",),
    "zerotools.ops.comparison.diff_result": ("CheckpointDiff",),
    "zerotools.public.make_and_apply_deltas": ("ApplyResult", "DeltaResult", "apply", "delta"),
    "zerotools.public.compare_checkpoints": ("DiffResult", "SeriesDiff", "diff", "diff_series"),
    "zerotools.public.consolidate_and_convert": ("consolidate", "convert"),
    "zerotools.public.reshard_checkpoint": ("reshard",),
    "zerotools.public.gather_shards": ("GatherResult", "gather"),
    "zerotools.public.inspect_checkpoint": ("InspectResult", "inspect"),
    "zerotools.public.lazy_reader": ("Entry", "Reader", "load_state_dict", "open"),
    "zerotools.public.estimate_memory": ("estimate",),
    "zerotools.public.progress": ("ProgressUpdate",),
    "zerotools.public.run_conversion": ("ConversionResult",),
    "zerotools.public.salvage_weights": ("SalvageResult", "salvage"),
    "zerotools.public.serve_checkpoint": ("ServedCheckpoint", "serve"),
    "zerotools.public.thin_checkpoints": ("ThinResult", "thin"),
    "zerotools.public.verify_checkpoint": ("VerifyResult", "verify"),
}
"""The names of the interface. The key is the module that defines them."""

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
    from zerotools.public.command_options.declare_and_bind_options import describe_options

    for module, names in _MODULES.items():
        if name in names:
            found = getattr(import_module(module), name)
            return describe_options(found) if callable(found) else found
    raise AttributeError(f"module 'zerotools.public' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
