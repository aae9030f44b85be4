"""Makes cases with the torch of another environment: `python -m tests.golden.torch_runs.older DIR`.

It needs torch, numpy and safetensors. Each case is a directory below `DIR/torch-VERSION`.
"""

import argparse
from pathlib import Path

import torch

from ..deepspeed_runs.forking import fork_ranks
from . import rank
from .cases import CASES

NAMES = (
    "fsdp1-dcp-w2",
    "fsdp1-sharded-bin-w2",
    "fsdp2-dcp-w3",
    "fsdp2-hf-sharded-w2",
    "fsdp2-torchtitan-w2",
    "fsdp2-tp-dcp-w4",
    "fsdp2-verl-w3",
    "training-file",
)
"""The cases of every other version: each layout and each kind of file once."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    version = torch.__version__.partition("+")[0]
    for name in options.names or NAMES:
        directory = options.out / f"torch-{version}" / name
        try:
            fork_ranks(rank.main, name, CASES[name].world_size, directory)
            print(name, flush=True)
        except RuntimeError as error:
            print(error, flush=True)


if __name__ == "__main__":
    main()
