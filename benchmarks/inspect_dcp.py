"""`zerotools inspect` of a DCP checkpoint, against importing torch's own reader.

    python -m benchmarks.inspect_dcp [--layers 24] [--runs 7]

The checkpoint is written by torch.distributed.checkpoint: a Llama-shaped model with AdamW state.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.measuring import HEADER, interleaved, machine, measure, row, zerotools


def write_checkpoint(directory: Path, layers: int) -> int:
    """Save weights and moments of `layers` blocks; returns how many tensors."""
    import torch
    import torch.distributed.checkpoint as dcp

    width, inner = 256, 688
    shapes = {"model.embed_tokens.weight": (1024, width)}
    for layer in range(layers):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"model.layers.{layer}.self_attn.{name}.weight"] = (width, width)
        for name, shape in (
            ("gate_proj", (inner, width)),
            ("up_proj", (inner, width)),
            ("down_proj", (width, inner)),
        ):
            shapes[f"model.layers.{layer}.mlp.{name}.weight"] = shape
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (width,)
    state = {
        "model": {name: torch.randn(shape) for name, shape in shapes.items()},
        "optim": {
            f"{name}.{moment}": torch.randn(shape)
            for name, shape in shapes.items()
            for moment in ("exp_avg", "exp_avg_sq")
        },
    }
    dcp.save(state, checkpoint_id=directory)
    return 3 * len(shapes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "checkpoint"
        # In a process of its own: a child's peak memory is counted from its parent's.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            tensors = pool.submit(write_checkpoint, path, options.layers).result()
        size = sum(file.stat().st_size for file in path.iterdir())
        imports = [sys.executable, "-c", "import torch.distributed.checkpoint"]
        results = interleaved(
            {
                "zerotools inspect": lambda: measure(zerotools("inspect", path)),
                "zerotools inspect --json": lambda: measure(zerotools("inspect", path, "--json")),
                'python -c "import torch.distributed.checkpoint"': lambda: measure(imports),
                'python -c "pass"': lambda: measure([sys.executable, "-c", "pass"]),
            },
            runs=options.runs,
        )
    print(f"{machine()}; {tensors} tensors, {size / 1e6:.0f} MB, median of {options.runs}\n")
    print(HEADER)
    for name, measurements in results.items():
        print(row(f"`{name}`", measurements))


if __name__ == "__main__":
    main()
