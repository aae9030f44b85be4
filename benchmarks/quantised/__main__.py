"""Time to make plain weights of quantised ones and the other way round, beside copying the same
bytes and beside torch doing the same arithmetic.

    python -m benchmarks.quantised [MIB] [DIRECTORY]

MIB is the size of the plain weights in bf16. Needs torch and transformers. Results:
benchmarks/results/quantised.md.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from zerotools.ops.conversions.consolidate import Options, prepare
from zerotools.ops.conversions.conversion import perform
from zerotools.ops.execution.workers import MemoryBudget

SIDE = 4096
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "float"}
MXFP8 = {"quant_method": "mxfp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True}
MXFP4 = {"quant_method": "mxfp4"}
Tensors = dict[str, torch.Tensor]


def plain(count: int) -> Tensors:
    return {f"l.{n}.weight": torch.randn(SIDE, SIDE).bfloat16() for n in range(count)}


def quantise(tensors: Tensors, settings: dict[str, object]) -> Tensors:
    """As transformers does it."""
    operation = Fp8Quantize(SimpleNamespace(quantization_config=SimpleNamespace(**settings)))
    made: Tensors = {}
    for name, tensor in tensors.items():
        made |= operation._quantize_one(name, tensor)
    return {name: t.view(torch.uint8) if t.itemsize == 1 and "scale" in name else t
            for name, t in made.items()}  # fmt: skip


def dequantise(tensors: Tensors) -> Tensors:
    one = Fp8Dequantize(None)._dequantize_one
    names = [name for name in tensors if name.endswith(".weight")]
    return {n: one(tensors[n], tensors[f"{n}_scale_inv"], torch.bfloat16) for n in names}


def experts(count: int) -> Tensors:
    blocks = torch.randint(0, 256, (count, SIDE, SIDE // 32, 16), dtype=torch.uint8)
    scales = torch.randint(110, 130, blocks.shape[:-1], dtype=torch.uint8)
    return {"e.up_blocks": blocks, "e.up_scales": scales}


def unpack(tensors: Tensors) -> Tensors:
    blocks, scales = tensors["e.up_blocks"], tensors["e.up_scales"]
    parts = zip(blocks.split(1), scales.split(1), strict=True)  # all at once would not fit
    return {"e.up": torch.cat([convert_moe_packed_tensors(b, s) for b, s in parts])}


def coded(count: int) -> Tensors:
    made: Tensors = {}
    state = json.dumps({"shape": [SIDE, SIDE], "blocksize": 64, "dtype": "bfloat16"}).encode()
    for n in range(count):
        payload = torch.randint(0, 256, (SIDE * SIDE // 2, 1), dtype=torch.uint8)
        name = f"l.{n}.weight"
        made |= {
            name: payload,
            f"{name}.absmax": torch.rand(SIDE * SIDE // 64),
            f"{name}.quant_map": torch.linspace(-1, 1, 16),
            f"{name}.quant_state.bitsandbytes__nf4": torch.tensor(list(state), dtype=torch.uint8),
        }
    return made


def decode(tensors: Tensors) -> Tensors:
    """As bitsandbytes does it where it has no kernel."""
    made: Tensors = {}
    for name in [name for name in tensors if name.endswith(".weight")]:
        packed, code = tensors[name].reshape(-1), tensors[f"{name}.quant_map"]
        index = torch.stack([packed >> 4, packed & 15], -1).reshape(-1).int()
        values = code[index].reshape(-1, 64) * tensors[f"{name}.absmax"][:, None]
        made[name] = values.reshape(SIDE, SIDE).bfloat16()
    return made


def speed_of(work: Callable[[], object], moved: int) -> str:
    """GB/s by the clock and by processor time, each the best of three."""
    wall, processor = [], []
    for _ in range(3):
        began, used = time.monotonic(), time.process_time()
        work()
        wall.append(time.monotonic() - began)
        processor.append(time.process_time() - used)
    return f"{moved / min(wall) / 1e9:.2f} | {moved / min(processor) / 1e9:.2f}"


def copy(source: Path, target: Path, size: int) -> None:
    """Read `source`, and write as many bytes as `size` says."""
    data = memoryview(bytearray(2**20))
    with source.open("rb", buffering=0) as read, target.open("wb", buffering=0) as write:
        while read.readinto(data):
            pass
        for begin in range(0, size, len(data)):
            write.write(data[: min(size - begin, len(data))])
        os.fsync(write.fileno())


def measure(
    name: str,
    source: Tensors,
    settings: dict[str, object] | None,
    dtype: str,
    peer: Callable[[Tensors], Tensors],
    parent: Path,
) -> str:
    """One row: GB/s of what is read and written together."""
    with tempfile.TemporaryDirectory(dir=parent) as scratch:
        root, out, other = (Path(scratch) / word for word in ("in", "out", "other"))
        root.mkdir()
        file = root / "model.safetensors"
        save_file(source, file, metadata={"format": "pt"})
        config = {"model_type": "llama"} | ({"quantization_config": settings} if settings else {})
        (root / "config.json").write_text(json.dumps(config))

        def ours() -> None:
            conversion = prepare(root, out, Options(dtype=dtype, max_shard_bytes=2**40))
            perform(conversion, budget=MemoryBudget(workers=2), overwrite=out.exists())

        def theirs() -> None:
            save_file(peer(load_file(file)), other)
            with other.open("rb") as written:
                os.fsync(written.fileno())

        ours()
        size = (out / "model.safetensors").stat().st_size
        moved = file.stat().st_size + size
        cells = [speed_of(work, moved) for work in (ours, lambda: copy(file, other, size), theirs)]
        return f"| {name} | " + " | ".join(cells) + " |"


def main(arguments: list[str]) -> None:
    mib = int(arguments[0]) if arguments else 512
    parent = Path(arguments[1] if arguments[1:] else tempfile.gettempdir())
    count = max(1, mib * 2**20 // (2 * SIDE * SIDE))
    torch.manual_seed(0)
    torch.set_num_threads(2)
    titles = ("zerotools", "copied", "torch")
    columns = " | ".join(f"{title} by the clock | by processor time" for title in titles)
    print(f"| GB/s read and written | {columns} |")
    print("|---" * 7 + "|")
    given = plain(count)
    rows: tuple[tuple[str, Tensors, dict[str, object] | None, str, Callable[..., Tensors]], ...] = (
        ("fp8 blocks to bf16", quantise(given, FP8), FP8, "bf16", dequantise),
        ("fp8 blocks to fp32", quantise(given, FP8), FP8, "fp32", dequantise),
        ("MXFP8 to bf16", quantise(given, MXFP8), MXFP8, "bf16", dequantise),
        ("MXFP4 experts to bf16", experts(count), MXFP4, "bf16", unpack),
        ("nf4 to bf16", coded(count), NF4, "bf16", decode),
        ("bf16 to fp8 blocks", given, None, "fp8-block", lambda t: quantise(t, FP8)),
        ("bf16 to MXFP8", given, None, "mxfp8", lambda t: quantise(t, MXFP8)),
    )
    for row in rows:
        print(measure(*row, parent), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
