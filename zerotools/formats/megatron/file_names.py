"""File and directory names that identify a Megatron checkpoint."""

from __future__ import annotations

import re

COMMON, CONFIG = "common.pt", "metadata.json"
RANK_FILES = ("model_optim_rng.pt", "distrib_optim.pt")
RANK = re.compile(r"mp_rank_\d{2,4}(_\d{3,5}){0,2}")
TRACKER = "latest_checkpointed_iteration.txt"
BRIDGE_TRACKER = "latest_train_state.pt"
ITERATION = re.compile(r"iter_\d{7,}|release")
SLIME = "meta.json"
"""A file that slime writes next to an FSDP DCP. The directories have the same names as Megatron's,
and this file shows the difference.
"""
