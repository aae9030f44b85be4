"""A Megatron run as a model of the Hub: bytes a second, and the most memory that it took.

    python -m benchmarks.megatron_ranks.as_hub [--layers 44] [--runs 1] [--max-memory 128MiB]
        [--beside "COMMAND"] DIR

The run is that of a dense model (18B with 44 layers, 0.39B for each) in bf16, as megatron-core has
it with TP 8 and PP 4, in DIR, which must have room for the output. Its data files are sparse: they
read as zeros, and take no room. `--runs 0` plans alone. What was written is removed.

`--beside` runs another program on the same bytes before each of ours, as `COMMAND CHECKPOINT MODEL
OUT`: `tests/megatron_runs/README.md` has the one for Megatron-Bridge.
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import shlex
import shutil
import subprocess
import sys
import zipfile
from argparse import Namespace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.measuring import machine, measure, zerotools

TP, PP = 8, 4
HIDDEN, FFN, HEADS, GROUPS, HEAD, ROWS = 6144, 16384, 48, 8, 128, 32768
CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": HEAD,
    "vocab_size": ROWS,
    "tie_word_embeddings": False,
}


def shapes(layers: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Of each key the shape, and into how many pieces the ranks cut each dimension."""
    before = "decoder.layers"
    norm = (layers, HIDDEN), (layers, 1)
    qkv = (HEADS + 2 * GROUPS) * HEAD
    return {
        "embedding.word_embeddings.weight": ((ROWS, HIDDEN), (TP, 1)),
        f"{before}.self_attention.linear_qkv.layer_norm_weight": norm,
        f"{before}.self_attention.linear_qkv.weight": ((layers, qkv, HIDDEN), (layers, TP, 1)),
        f"{before}.self_attention.linear_proj.weight": (
            (layers, HIDDEN, HEADS * HEAD),
            (layers, 1, TP),
        ),
        f"{before}.mlp.linear_fc1.layer_norm_weight": norm,
        f"{before}.mlp.linear_fc1.weight": ((layers, 2 * FFN, HIDDEN), (layers, 2 * TP, 1)),
        f"{before}.mlp.linear_fc2.weight": ((layers, HIDDEN, FFN), (layers, 1, TP)),
        "decoder.final_layernorm.weight": ((HIDDEN,), (1,)),
        "output_layer.weight": ((ROWS, HIDDEN), (TP, 1)),
    }


class _Archives:
    """torch.save of zeros, whose bytes of data are left out of the file."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[bytes, int, bytes]] = {}

    def append(self, file: Any, shape: tuple[int, ...]) -> int:
        """Write one behind what `file` has; how long it is."""
        import torch

        if shape not in self._known:
            buffer = io.BytesIO()
            torch.save(torch.zeros(shape, dtype=torch.bfloat16), buffer)
            whole, size = buffer.getvalue(), 2 * torch.Size(shape).numel()
            with zipfile.ZipFile(buffer) as archive:
                at = archive.getinfo("archive/data/0").header_offset
            name, extra = (int.from_bytes(whole[at + k : at + k + 2], "little") for k in (26, 28))
            begin = at + 30 + name + extra
            self._known[shape] = whole[:begin], size, whole[begin + size :]
        head, size, tail = self._known[shape]
        file.write(head)
        file.seek(size, 1)
        file.write(tail)
        return len(head) + size + len(tail)


def write_checkpoint(directory: Path, layers: int) -> int:
    """Write the checkpoint; returns how many bytes of weights it has."""
    import torch
    from torch.distributed.checkpoint import metadata as dcp
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    directory.mkdir(parents=True)
    names = [f"__{rank}_0.distcp" for rank in range(TP * PP)]
    files = {name: (directory / name).open("wb") for name in names}
    archives, stored, entries, count, total = _Archives(), {}, {}, 0, 0
    for key, (shape, counts) in shapes(layers).items():
        size = tuple(a // b for a, b in zip(shape, counts, strict=True))
        chunks = []
        for at in product(*map(range, counts)):
            start = torch.Size(a * n for a, n in zip(at, size, strict=True))
            name = names[count % len(names)]
            begin = files[name].tell()
            length = archives.append(files[name], size)
            stored[dcp.MetadataIndex(key, start, len(chunks))] = _StorageInfo(name, begin, length)
            chunks.append(dcp.ChunkStorageMetadata(start, torch.Size(size)))
            count += 1
        properties = dcp.TensorProperties(dtype=torch.bfloat16)
        entries[key] = dcp.TensorStorageMetadata(properties, torch.Size(shape), chunks)
        total += 2 * torch.Size(shape).numel()
    for file in files.values():
        file.close()
    (directory / ".metadata").write_bytes(pickle.dumps(dcp.Metadata(entries, storage_data=stored)))
    args = Namespace(num_layers=layers, hidden_size=HIDDEN, tensor_model_parallel_size=TP)
    torch.save({"args": args, "iteration": 10}, directory / "common.pt")
    backend = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    (directory / "metadata.json").write_text(json.dumps(backend))
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("where", type=Path)
    parser.add_argument("--layers", type=int, default=44)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--max-memory", default="128MiB")
    parser.add_argument("--beside", default="", metavar="COMMAND")
    parser.add_argument("--write", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    place = options.where / "megatron-as-hub"
    source, model, out = place / "iter_0000010", place / "model", place / "out"
    if options.write:
        print(write_checkpoint(source, options.layers))
        return
    try:
        # By a process of its own: the memory that torch takes would be counted for children, too.
        again = [sys.executable, "-m", "benchmarks.megatron_ranks.as_hub", "--write"]
        again += ["--layers", str(options.layers), str(options.where)]
        total = int(subprocess.run(again, check=True, capture_output=True, text=True).stdout)
        model.mkdir()
        config = {**CONFIG, "num_hidden_layers": options.layers}
        (model / "config.json").write_text(json.dumps(config))
        command = zerotools("consolidate", source, out, "--map-to", "hf", "--config-dir", model)
        command += ["--max-memory", options.max_memory]
        print(f"{machine()}; {options.layers} layers, {total / 1e9:.1f} GB of weights in bf16")
        plan = measure([*command, "--dry-run"])
        print(f"planned in {plan.cpu_seconds:.2f} s of the processor")
        beside = shlex.split(options.beside)
        programs = {"beside": [*beside, *map(str, (source, model, out))]} if beside else {}
        for _ in range(options.runs):
            for name, words in {**programs, "zerotools": command}.items():
                done = measure(words, sampling=True)
                written = sum(file.stat().st_size for file in out.glob("*.safetensors"))
                if written < total:
                    raise SystemExit(f"{name} wrote {written} bytes of {total}")
                shutil.rmtree(out)
                print(
                    f"{name}: {total / 1e9 / done.wall_seconds:.2f} GB/s, {done.cpu_seconds:.1f} s "
                    f"of the processor, at most {done.peak_rss_bytes / 2**20:.0f} MiB, of which "
                    f"{done.peak_anonymous_bytes / 2**20:.0f} MiB are no pages of files"
                )
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
