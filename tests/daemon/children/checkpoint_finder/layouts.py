"""Layouts of a program's checkpoints, drawn at random, and which of them are whole."""

from __future__ import annotations

import json
import os
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


def tensors(path: Path, names: Sequence[str] = ("w", "b")) -> None:
    """A whole safetensors file of float32 values, in which each tensor has two elements."""
    header = {
        name: {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]}
        for i, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8 * len(names)))


def own_format(path: Path) -> None:
    """A file that only its program reads, under a name that torch files have."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"state of my own\n" * 9)


def one_file(at: Path) -> Path:
    path = at.with_name(f"{at.name}.safetensors")
    tensors(path)
    return path


def one_directory(at: Path) -> Path:
    tensors(at / "model.safetensors")
    return at


def sets(at: Path) -> Path:
    tensors(at / "model-00001-of-00002.safetensors", ["w"])
    tensors(at / "model-00002-of-00002.safetensors", ["b"])
    return at


def indexed(at: Path) -> Path:
    sets(at)
    files = {"w": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (at / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return at


def model_and_average(at: Path) -> Path:
    """Two models in one directory, with the same names of tensors."""
    tensors(at / "weights.safetensors")
    tensors(at / "average.safetensors")
    return at


def own_file(at: Path) -> Path:
    path = at.with_name(f"{at.name}.pt")
    own_format(path)
    return path


def own_directory(at: Path) -> Path:
    own_format(at / "rank_0.pt")
    own_format(at / "rank_1.pt")
    return at


Make = Callable[[Path], Path]
READABLE: tuple[Make, ...] = (one_file, one_directory, sets, indexed, model_and_average)
OWN: tuple[Make, ...] = (own_file, own_directory)
NAMES = ("step-{}", "checkpoint-{}", "epoch_{}", "global_step{}", "model-step-{:06d}")


@dataclass
class Layout:
    """The checkpoints that a program left in `out`, oldest first. A job may resume from those in
    `whole`; `reported` those of which the program said so."""

    out: Path
    whole: list[Path] = field(default_factory=list)
    reported: list[Path] = field(default_factory=list)
    cut: list[Path] = field(default_factory=list)
    clock: int = 1_000_000_000

    def date(self, path: Path) -> None:
        self.clock += 10
        files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
        for file in files:
            os.utime(file, (self.clock, self.clock))


def draw(seed: int, out: Path) -> Layout:
    """One to five checkpoints of one program; the last may have been cut off by a kill."""
    rng, layout = random.Random(seed), Layout(out)
    reports = rng.random() < 0.5
    makes = READABLE + OWN if reports else READABLE
    make, name = rng.choice(makes), rng.choice(NAMES)
    at = out / rng.choice(["", "", "kept"])
    steps = sorted(rng.sample(range(1, 99), rng.randint(1, 5)))
    is_cut = rng.random() < 0.4
    for step in steps:
        path = make(at / name.format(step))
        layout.date(path)
        if is_cut and step == steps[-1]:
            _cut(path)
            layout.date(path)
            layout.cut.append(path)
        else:
            layout.whole.append(path)
        said = reports and (path not in layout.cut or rng.random() < 0.5)
        if said:
            layout.reported.append(path)
    _clutter(rng, layout)
    return layout


def _cut(path: Path) -> None:
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    last = [p for p in files if p.suffix in (".safetensors", ".pt")][-1]
    last.write_bytes(last.read_bytes()[:-4] if last.suffix == ".safetensors" else b"")


def _clutter(rng: random.Random, layout: Layout) -> None:
    """Add the other files that programs leave there, written last."""
    for name in rng.sample(["log.txt", "config.json", "events.out", "tmp-step-99"], 2):
        path = layout.out / name
        path.write_text("{}")
        layout.date(path)
    if rng.random() < 0.3:
        tensors(layout.out / "tmp-0" / "model.safetensors")
    if rng.random() < 0.3 and layout.whole:
        at = layout.whole[-1].parent / rng.choice(["best.safetensors", "ema-step-98.safetensors"])
        tensors(at if layout.whole[-1].is_file() else layout.out / "best" / "model.safetensors")
    if rng.random() < 0.3:
        link = layout.out / "latest"
        link.symlink_to(layout.whole[-1].name if layout.whole else "nothing")
