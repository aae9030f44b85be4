"""Keys of the training file `checkpoint.pt`, besides `model` and `optimizer`.

If `MARK` has the value `VERSION`, zerotools wrote the file. Keys without a known value are left
out. `BUFFER_NAMES` is also a key of DeepSpeed's model files.
"""

from __future__ import annotations

BUFFER_NAMES = "buffer_names"
MARK, VERSION = "written_as", "zerotools.training/1"
FROZEN, PRECISION, OPTIMIZER = "frozen_names", "precision", "optimizer_name"
STEPS, SKIPPED, SAMPLES = "steps", "skipped_steps", "samples"
LOSS_SCALE, SCHEDULER, CLIENT = "loss_scale", "lr_scheduler", "client"
