"""What a process that looks is asked of the directories of jobs for their results."""

from __future__ import annotations

from zerotoolsd.results.checkpoint_tree import checkpoint_tree
from zerotoolsd.results.prediction_rows import prediction_rows

RESULT_LOOKS = (checkpoint_tree, prediction_rows)
