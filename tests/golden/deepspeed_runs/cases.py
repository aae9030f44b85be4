"""What is generated: one `Case` per committed directory under tests/golden/deepspeed-<version>."""

from collections.abc import Mapping

from .case import Case
from .cases_layout import FROZEN, GROUPS, STAGES
from .cases_parallel import OLDER, PARALLEL
from .cases_state import MUON, OFFLOAD, STATE
from .cases_surroundings import SURROUNDINGS

CASES: Mapping[str, Case] = {
    case.name: case
    for case in (*STAGES, *GROUPS, *FROZEN, *STATE, *MUON, *OFFLOAD, *SURROUNDINGS, *PARALLEL)
}

ALL_CASES: Mapping[str, Case] = {**CASES, **{case.name: case for case in OLDER}}
"""Those and the cases of older versions alone, below tests/golden/deepspeed-<version>."""
