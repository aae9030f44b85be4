"""The functions of the child process that read results in the directories of jobs."""

from __future__ import annotations

from zerotoolsd.service.results.checkpoint_tree import checkpoint_tree
from zerotoolsd.service.results.prediction_rows import prediction_rows
from zerotoolsd.service.results.thinned_record import thinned_sentence

RESULT_LOOKS = (checkpoint_tree, prediction_rows, thinned_sentence)
