"""What a layout map costs: an export in another layout, by the same export without a map.

    python benchmarks/layout_maps/export_cost.py [MIB] [DIRECTORY] [--rounds 3]

Makes models of about MIB MiB in bf16 (safetensors, of random bytes; no torch), and exports each as
it is, in another layout, and back. Prints seconds, the least of the rounds, and the ratio to the
plain export of the same bytes. Results: benchmarks/results/layout-maps.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import tempfile
import time
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from zerotools.maps.map_file import HUB
from zerotools.maps.model_layout import layout_of_model
from zerotools.maps.shipped import map_of_model
from zerotools.ops.conversions.consolidate import Options, prepare
from zerotools.ops.conversions.conversion import perform
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.weights.layout_mapping import MapRequest

_SHARED: dict[str, Any] = {
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
_MODELS: list[tuple[dict[str, Any], list[str]]] = [
    ({"model_type": "llama", "intermediate_size": 5632}, ["titan", "megatron"]),
    (
        {"model_type": "mixtral", "intermediate_size": 1408, "num_local_experts": 8},
        ["hf-fused", "megatron"],
    ),
    ({"model_type": "gpt_oss", "intermediate_size": 1408, "num_local_experts": 8}, ["megatron"]),
]


def make(folder: Path, config: dict[str, Any]) -> int:
    """A model directory of random bytes; how many they are."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    hub = layout_of_model(map_of_model(config), HUB, config).hub
    header, at = {}, 0
    for name, shape in hub.items():
        nbytes = 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        random = np.random.default_rng(0)
        for begin in range(0, at, 2**24):
            file.write(random.bytes(min(2**24, at - begin)))
    return at


def layers_for(config: dict[str, Any], mib: int) -> int:
    """How many layers make so many MiB."""
    sizes = []
    for layers in (1, 2):
        shapes = layout_of_model(
            map_of_model(config), HUB, {**config, "num_hidden_layers": layers}
        ).hub.values()
        sizes.append(sum(2 * prod(shape) for shape in shapes))
    return max(1, (mib * 2**20 - sizes[0]) // (sizes[1] - sizes[0]) + 1)


def seconds(source: Path, out: Path, to: str | None) -> tuple[float, float]:
    """What an export takes: on the clock, and of the processor."""
    shutil.rmtree(out, ignore_errors=True)
    began = time.monotonic(), time.process_time()
    options = Options(dtype="bf16", mapping=MapRequest(to=to) if to else None)
    perform(prepare(source, out, options), budget=MemoryBudget(), overwrite=False)
    return time.monotonic() - began[0], time.process_time() - began[1]


def both(source: Path, out: Path, to: str, rounds: int) -> tuple[list[float], list[float]]:
    """The least times of the plain export and of the mapped one, which are done in turn."""
    plain, mapped = [], []
    for _ in range(rounds):
        plain.append(seconds(source, out.with_name("plain"), None))
        mapped.append(seconds(source, out, to))
    shutil.rmtree(out.with_name("plain"))
    return [min(each) for each in zip(*plain, strict=True)], [
        min(each) for each in zip(*mapped, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mib", nargs="?", type=int, default=1024)
    parser.add_argument("directory", nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print("model     from      to         MiB   plain s (cpu)   mapped s (cpu)   ratio (cpu)")
    for own, layouts in _MODELS:
        config = {**_SHARED, **own}
        config["num_hidden_layers"] = layers_for(config, arguments.mib)
        with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
            root = Path(name)
            mib = make(root / HUB, config) / 2**20
            for layout in layouts:
                pairs = ((HUB, layout), (layout, HUB))
                for source, target in pairs:
                    out = root / (layout if target == layout else "out")
                    plain, took = both(root / source, out, target, arguments.rounds)
                    ratio, cpu = took[0] / plain[0], took[1] / plain[1]
                    print(
                        f"{config['model_type']:<9} {source:<9} {target:<9} {mib:>5.0f}  "
                        f"{plain[0]:>7.2f} ({plain[1]:.2f})   {took[0]:>7.2f} ({took[1]:.2f})   "
                        f"{ratio:>5.2f} ({cpu:.2f})",
                        flush=True,
                    )
                shutil.rmtree(root / layout)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"peak memory of the process: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
