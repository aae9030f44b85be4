"""The size and the processor time of deltas of steps of AdamW, next to other programs.

    python -m benchmarks.deltas DIRECTORY [--hidden 768] [--layers 6]

A Llama learns random tokens with one loss at three learning rates: fp32 masters, cast to bf16.
Each step is measured with `zerotools delta` and `apply`, `zstd -3 --long=27` of the second model,
`zstd -3 --long=31 --patch-from`, `xdelta3` and `rsync --only-write-batch`. Those that are not
installed are left out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.measuring import measure, zerotools

RATES = {"lr-1e-6": 1e-6, "lr-5e-6": 5e-6, "lr-2e-5": 2e-5}


def make_steps(place: Path, hidden: int, layers: int) -> None:
    """Write `before` and `after` of one step for each learning rate, in bf16 and in fp32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        vocab_size=16000,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)

    def step() -> None:
        tokens = torch.randint(0, 16000, (2, 64))
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def write(name: str, dtype: torch.dtype) -> None:
        directory = place / name
        directory.mkdir(parents=True)
        tensors = {n: t.detach().to(dtype).contiguous() for n, t in model.named_parameters()}
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        config.dtype = dtype
        config.save_pretrained(directory)

    for _ in range(5):
        step()
    for name, rate in RATES.items():
        for group in optimizer.param_groups:
            group["lr"] = rate
        step()
        for dtype in (torch.bfloat16, torch.float32):
            write(f"{name}-{dtype}".replace("torch.", "") + "/before", dtype)
        step()
        for dtype in (torch.bfloat16, torch.float32):
            write(f"{name}-{dtype}".replace("torch.", "") + "/after", dtype)


def make_synthetic(place: Path, part: float) -> None:
    """Write a pair in which `part` of the bf16 values moved to a neighbour."""
    first = place / "lr-1e-6-bfloat16" / "before"
    tensors = load_file(first / "model.safetensors")
    for name, tensor in tensors.items():
        bits = tensor.view(torch.int16)
        moved = torch.rand(bits.shape) < part
        tensors[name] = torch.where(moved, bits + 1, bits).view(torch.bfloat16)
    target = place / f"synthetic-{part:g}"
    (target / "after").mkdir(parents=True)
    shutil.copytree(first, target / "before")
    shutil.copy(first / "config.json", target / "after")
    save_file(tensors, target / "after" / "model.safetensors", {"format": "pt"})


def print_rows(pair: Path, out: Path) -> None:
    """Print a row for each program."""
    a, b = pair / "before", pair / "after"
    files = a / "model.safetensors", b / "model.safetensors"
    size = files[1].stat().st_size
    idle = measure(zerotools("inspect", a)).cpu_seconds
    rows: dict[str, tuple[Sequence[str | Path], Sequence[str | Path] | None]] = {
        "zerotools delta": (
            zerotools("delta", a, b, out),
            zerotools("apply", a, out, out.with_name("made")),
        ),
        "zstd -3 --long=27": (
            ["zstd", "-q", "-3", "--long=27", files[1], "-o", out],
            ["zstd", "-q", "-d", "--long=27", out, "-o", out.with_name("made")],
        ),
        "zstd -3 --patch-from": (
            ["zstd", "-q", "-3", "--long=31", f"--patch-from={files[0]}", files[1], "-o", out],
            [
                *("zstd", "-q", "-d", "--long=31", f"--patch-from={files[0]}", out),
                *("-o", out.with_name("made")),
            ],
        ),
        "xdelta3": (
            ["xdelta3", "-e", "-S", "none", "-s", files[0], files[1], out],
            ["xdelta3", "-d", "-s", files[0], out, out.with_name("made")],
        ),
        "rsync batch": (
            [
                *("rsync", "-a", "-I", "--no-whole-file", f"--only-write-batch={out}"),
                *(f"{b}/", f"{a}/"),
            ],
            None,
        ),
    }
    for name, (make, apply) in rows.items():
        if shutil.which(str(make[0])) is None:
            continue
        made = out.with_name("made")
        for path in (out, made):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        seconds = measure([*map(str, make)]).cpu_seconds
        back = ""
        if apply is not None:
            back = f"{size / measure([*map(str, apply)]).cpu_seconds / 1e6:.0f}"
        print(
            f"| {pair.name} | {name} | {out.stat().st_size:,} | {size / out.stat().st_size:.1f} | "
            f"{size / seconds / 1e6:.0f} | {back} |",
            flush=True,
        )
    print(f"(start-up of zerotools: {idle:.2f} s of processor time, included)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=6)
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    pairs = given.directory / "pairs"
    if not pairs.exists():
        make_steps(pairs, given.hidden, given.layers)
        for part in (0.02, 0.2):
            make_synthetic(pairs, part)
    print("| step | program | bytes | times smaller | make MB/s | apply MB/s |")
    print("|---|---|---|---|---|---|")
    for pair in sorted(pairs.iterdir()):
        print_rows(pair, given.directory / "delta")


if __name__ == "__main__":
    main()
