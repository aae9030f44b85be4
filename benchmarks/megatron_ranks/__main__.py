"""Planning an export of a `torch_dist` checkpoint of 1,024 ranks: what costs is the number of
archives, not their bytes.

    python -m benchmarks.megatron_ranks [--runs 3] [--layers 80] [--width 128]

The directory is as megatron-core saves it for a dense model with TP 8, PP 16 and DP 8: a data file
for each of two writers of each rank, layers stacked, gated halves in chunks of their own, weights
in bf16, masters and moments in fp32: once in shape, once flattened and cut between data-parallel
ranks, as before 0.16. Widths are small, so that the disk is not what is measured.
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.measuring import HEADER, interleaved, machine, measure, row, zerotools

TP, PP, DP, WRITERS = 8, 16, 8, 2
ROLES = ("fp32_param", "exp_avg", "exp_avg_sq")
Grid = tuple[int, ...]
ADAM = ["--lr", "1e-4", "--betas", "0.9", "0.95", "--eps", "1e-8", "--weight-decay", "0.1"]


def shapes(layers: int, width: int) -> dict[str, tuple[Grid, Grid]]:
    """Of each key the shape, and into how many pieces the ranks cut each dimension."""
    inner, before = 4 * width, "decoder.layers"
    norm = (layers, width), (layers, 1)
    return {
        "embedding.word_embeddings.weight": ((8 * width, width), (TP, 1)),
        f"{before}.self_attention.linear_qkv.layer_norm_weight": norm,
        f"{before}.self_attention.linear_qkv.weight": (
            (layers, 3 * width, width),
            (layers, TP, 1),
        ),
        f"{before}.self_attention.linear_proj.weight": ((layers, width, width), (layers, 1, TP)),
        f"{before}.mlp.linear_fc1.layer_norm_weight": norm,
        f"{before}.mlp.linear_fc1.weight": ((layers, 2 * inner, width), (layers, 2 * TP, 1)),
        f"{before}.mlp.linear_fc2.weight": ((layers, width, inner), (layers, 1, TP)),
        "decoder.final_layernorm.weight": ((width,), (1,)),
        "output_layer.weight": ((8 * width, width), (TP, 1)),
    }


def _pieces(shape: Grid, counts: Grid, *, flat: bool) -> Iterator[tuple[Grid, Grid]]:
    """(start, shape) of each chunk as it is stored."""
    sizes = tuple(size // count for size, count in zip(shape, counts, strict=True))
    for at in product(*map(range, counts)):
        if not flat:
            yield tuple(a * n for a, n in zip(at, sizes, strict=True)), sizes
            continue
        length = 1
        for size in sizes:
            length *= size
        step = max(1, length // DP)
        for begin in range(0, length, step):
            yield (*at, begin), (*(1 for _ in at), min(step, length - begin))


def write_checkpoint(directory: Path, layers: int, width: int, *, flat: bool) -> int:
    """Write the checkpoint; returns how many chunks it has."""
    import torch
    from torch.distributed.checkpoint import metadata as dcp
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    directory.mkdir(parents=True)
    archives: dict[Any, bytes] = {}

    def archive(shape: Grid, dtype: torch.dtype) -> bytes:
        if (shape, dtype) not in archives:
            buffer = io.BytesIO()
            torch.save(torch.zeros(shape, dtype=dtype), buffer)
            archives[shape, dtype] = buffer.getvalue()
        return archives[shape, dtype]

    names = [f"__{r}_{w}.distcp" for r in range(TP * PP * DP) for w in range(WRITERS)]
    contents: dict[str, list[bytes]] = {name: [] for name in names}
    ends, stored, entries, true = dict.fromkeys(names, 0), {}, {}, {}
    count = 0
    for key, (shape, counts) in shapes(layers, width).items():
        for role in ("", *ROLES):
            is_flat = flat and bool(role)
            dtype = torch.float32 if role else torch.bfloat16
            name = f"optimizer.state.{role}.{key}" if role else key
            whole = shape
            if is_flat:
                length = torch.Size(shape).numel() // torch.Size(counts).numel()
                whole, true[name] = (*counts, length), shape
            chunks = []
            for start, size in _pieces(shape, counts, flat=is_flat):
                file = names[count * 7 % len(names)]
                data = archive(size, dtype)
                index = dcp.MetadataIndex(name, torch.Size(start), len(chunks))
                stored[index] = _StorageInfo(file, ends[file], len(data))
                contents[file].append(data)
                ends[file] += len(data)
                chunks.append(dcp.ChunkStorageMetadata(torch.Size(start), torch.Size(size)))
                count += 1
            properties = dcp.TensorProperties(dtype=dtype)
            entries[name] = dcp.TensorStorageMetadata(properties, torch.Size(whole), chunks)
    for name, parts in contents.items():
        (directory / name).write_bytes(b"".join(parts))
    saved = dcp.Metadata(entries, storage_data=stored)
    if true:
        facts = {k: {"nd_reformulated_orig_global_shape": v} for k, v in true.items()}
        saved.__dict__["mcore_data"] = facts
    (directory / ".metadata").write_bytes(pickle.dumps(saved))
    args = Namespace(
        num_layers=layers,
        hidden_size=width,
        tensor_model_parallel_size=TP,
        pipeline_model_parallel_size=PP,
        data_parallel_size=DP,
        bf16=True,
        world_size=TP * PP * DP,
    )
    torch.save({"args": args, "iteration": 10}, directory / "common.pt")
    backend = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    (directory / "metadata.json").write_text(json.dumps(backend))
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    print(f"{machine()}; TP {TP}, PP {PP}, DP {DP}, median of {options.runs}")
    for flat in (False, True):
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "iter_0000010"
            # Pieces are smaller: of a whole one the metadata would be too large for its data.
            layers, width = (
                (options.layers // 4, 3 * options.width)
                if flat
                else (options.layers, options.width)
            )
            chunks = write_checkpoint(path, layers, width, flat=flat)
            out = Path(temporary) / "out"
            commands = {
                "inspect": zerotools("inspect", path),
                "consolidate --dry-run": zerotools("consolidate", path, out, "--dry-run"),
                "convert --to dcp --dry-run": zerotools(
                    *("convert", "--to", "dcp", path, out, "--dry-run", "--world-size", "8"), *ADAM
                ),
            }
            results = interleaved(
                {name: partial(measure, command) for name, command in commands.items()},
                runs=options.runs,
                warm=options.runs > 1,
            )
        form = "flat (0.12 to 0.15)" if flat else "in shape (0.16)"
        files = TP * PP * DP * WRITERS
        print(f"\nOptimizer state {form}, {layers} layers: {chunks} chunks in {files} files\n")
        print(HEADER)
        for name, measurements in results.items():
            print(row(f"`zerotools {name}`", measurements))


if __name__ == "__main__":
    main()
