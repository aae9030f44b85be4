"""One of three ranks that add numbers by gloo, until rank 1 ends as HOW says:

python gloo_rank.py raise|SIGKILL|SIGSTOP
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

LONGEST = timedelta(seconds=4)
"""After so long the others give up waiting."""


def main(how: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=5))
    group = dist.new_group(backend="gloo", timeout=LONGEST)
    value = torch.ones(1)
    dist.barrier()
    for step in range(10):
        if dist.get_rank() == 1 and step == 3:
            if how == "raise":
                raise ValueError(f"no good number in step {step}")
            os.kill(os.getpid(), signal.Signals[how])
        dist.all_reduce(value, group=group)


if __name__ == "__main__":
    main(sys.argv[1])
