"""The keys of `checkpoint.pt`, a training file that zerotools writes, next to model and optimizer.

A file has them all if `MARK` has the value `VERSION`. `BUFFER_NAMES` is DeepSpeed's key: its own
model files have it too.
"""

from __future__ import annotations

BUFFER_NAMES = "buffer_names"
MARK, VERSION = "written_as", "zerotools.training/1"
FROZEN, PRECISION, OPTIMIZER = "frozen_names", "precision", "optimizer_name"
STEPS, SKIPPED, SAMPLES = "steps", "skipped_steps", "samples"
LOSS_SCALE, SCHEDULER, CLIENT = "loss_scale", "lr_scheduler", "client"
