"""The names that identify a DCP directory, and the programs that use each name.

<path>/.metadata                                  torch's own save; torchtitan's step-N
<path>/dcp/.metadata                              a zerotools job
<path>/pytorch_model_fsdp_0/.metadata             accelerate's save_state, the HF Trainer:
       optimizer_0/.metadata                      model and optimizer form one checkpoint
"""

from __future__ import annotations

import re

FSDP_MODEL = re.compile(r"pytorch_model_fsdp_\d+")


def fsdp_models(names: set[str]) -> list[str]:
    """Return the names of accelerate's model directories (`pytorch_model_fsdp_0`, ...), sorted by
    number.
    """
    found = filter(FSDP_MODEL.fullmatch, names)
    return sorted(found, key=lambda name: int(name.rpartition("_")[2]))
