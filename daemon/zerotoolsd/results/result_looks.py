"""The functions of the child process that read results in the directories of jobs."""

from __future__ import annotations

from zerotoolsd.results.checkpoint_tree import checkpoint_tree
from zerotoolsd.results.prediction_rows import prediction_rows
from zerotoolsd.results.thinned_look import thinned_sentence

RESULT_LOOKS = (checkpoint_tree, prediction_rows, thinned_sentence)
