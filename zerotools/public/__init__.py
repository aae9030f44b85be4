"""The Python interface. `import zerotools` is enough.

lazy_reader  a thin lazy reader around a checkpoint: `open`, `load_state_dict`
memory       estimate, as a function
operations   verify, diff, salvage and thin, as functions
"""

from zerotools.core.errors import BadFile, BadRequest, Unsupported, ZerotoolsError
from zerotools.public.lazy_reader import Entry, Reader, load_state_dict, open
from zerotools.public.memory import estimate
from zerotools.public.operations import diff, plan_thin, salvage, thin, verify

__all__ = [
    "BadFile",
    "BadRequest",
    "Entry",
    "Reader",
    "Unsupported",
    "ZerotoolsError",
    "diff",
    "estimate",
    "load_state_dict",
    "open",
    "plan_thin",
    "salvage",
    "thin",
    "verify",
]
