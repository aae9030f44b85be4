"""Damaged copies of checkpoints, what must be lost of them, and what salvage makes of them."""

from __future__ import annotations

import zipfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tests.golden_files import DEEPSPEED, TORCH
from tests.layouts import slices
from tests.ops.exports import export, weights_of
from tests.ops.verification.damage import SMALL, largest_record
from zerotools import formats
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.io.numeric.dtype_casts import Array
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.salvage.examine_damage import read_remaining
from zerotools.ops.salvage.prepare_salvage import prepare_salvage
from zerotools.ops.salvage.salvage_plan import Salvage, SalvageOptions
from zerotools.ops.verification.checkpoint_files import archives_in

KINDS = {
    "zero1": (DEEPSPEED / "z1-bf16-w4" / "checkpoint", "*_rank_1_*optim_states.pt"),
    "zero2": (DEEPSPEED / "z2-bf16-w3" / "checkpoint", "*_rank_1_*optim_states.pt"),
    "zero2 model": (DEEPSPEED / "z2-fp16-w2" / "checkpoint", "*_rank_0_*optim_states.pt"),
    "zero3": (DEEPSPEED / "z3-bf16-w4" / "checkpoint", "*_rank_2_*optim_states.pt"),
    "zero3 first": (DEEPSPEED / "z3-bf16-w2" / "checkpoint", "*_rank_0_*optim_states.pt"),
    "zero3 frozen": (DEEPSPEED / "z3-bf16-w3-adapter" / "checkpoint", "*_rank_1_*model_states.pt"),
    "bf16 optimizer": (DEEPSPEED / "bf16-optimizer-w2" / "checkpoint", "*_rank_1_*optim_states.pt"),
    "tensor parallel": (
        DEEPSPEED / "tensor-parallel-z2-fp32-w2" / "checkpoint",
        "*_rank_0_mp_rank_01_optim_states.pt",
    ),
    "universal": (DEEPSPEED / "universal-z2-bf16-w3" / "checkpoint", "zero/layer.weight/fp32.pt"),
    "dcp": (TORCH / "fsdp2-dcp-w3" / "checkpoint", "pytorch_model_fsdp_0/__1_0.distcp"),
    "dcp boxes": (TORCH / "fsdp2-tp-dcp-w4" / "checkpoint", "__2_0.distcp"),
    "rank files": (TORCH / "fsdp2-verl-w3" / "checkpoint", "model_world_size_3_rank_1.pt"),
}
"""A checkpoint, and one of its files."""


def damaged_file(path: Path, kind: str) -> Path:
    """The file of a copy of `KINDS[kind]` at `path` that is damaged."""
    (file,) = path.rglob(KINDS[kind][1])
    return file


@cache
def consolidated(path: Path) -> dict[str, Array]:
    """What an export of a sound checkpoint holds."""
    with TemporaryDirectory() as directory:
        return export(path, Path(directory) / "model")


def salvage(
    path: Path, out: Path, fill_from: Path | None = None, **options: object
) -> tuple[Salvage, dict[str, Array]]:
    """What is found, and the weights that are written, which are read back and compared."""
    found = prepare_salvage(
        read_remaining(path, stand_in=fill_from),
        out,
        SalvageOptions(**options),  # type: ignore[arg-type]
        fill_from=fill_from,
        budget=SMALL,
    )
    if found.conversion is None:
        return found, {}
    perform_conversion(found.conversion, budget=SMALL, overwrite=False, verify=True)
    return found, weights_of(out)


def is_equal(one: Array, other: Array) -> bool:
    """Bit for bit, type and shape included."""
    facts = [(each.dtype, each.shape, each.tobytes()) for each in (one, other)]
    return facts[0] == facts[1]


def lost_in(checkpoint: Checkpoint, file: str, begin: int, end: int) -> dict[Key, Array]:
    """Marks for the elements that lie in bytes [begin, end) of a file of a sound checkpoint, and
    nowhere else; of tensors that have some."""
    found = {}
    for key, tensor in checkpoint.tensors.items():
        marks = np.ones(tensor.shape, bool)
        for chunk in tensor.chunks:
            stop = chunk.offset + chunk.extent(tensor.dtype)
            if chunk.file != file or stop <= begin or end <= chunk.offset:
                marks[slices(chunk.box)] = False
        if marks.any():
            found[key] = marks
    return found


def marks_of(found: Salvage) -> dict[Key, Array]:
    """The same, of what salvage says."""
    marks = {}
    for key, holes in found.examined.holes.items():
        marks[key] = np.zeros(holes.shape, bool)
        for box in holes.boxes:
            assert not marks[key][slices(box)].any(), "boxes overlap"
            marks[key][slices(box)] = True
    return marks


def record_around(path: Path, file: Path, at: int) -> tuple[int, int]:
    """[begin, end) of the record of an archive in `file` that byte `at` is in."""
    checkpoint = formats.read(path)
    name = file.relative_to(checkpoint.root).as_posix()
    windows = archives_in(checkpoint).get(name, {0: file.stat().st_size})
    begin, length = next((o, n) for o, n in windows.items() if o <= at < o + n)
    data = file.read_bytes()[begin : begin + length]
    with TemporaryDirectory() as directory:
        alone = Path(directory) / "archive"
        alone.write_bytes(data)
        with zipfile.ZipFile(alone) as archive:
            for entry in archive.infolist():
                header = entry.header_offset
                name_size, extra_size = (
                    int.from_bytes(data[header + i : header + i + 2], "little") for i in (26, 28)
                )
                first = begin + header + 30 + name_size + extra_size
                if first <= at < first + entry.file_size:
                    return first, first + entry.file_size
    raise AssertionError(f"byte {at} is in no record")


def largest(path: Path, file: Path) -> int:
    """Where the largest storage of a file begins, which may be a row of archives."""
    checkpoint = formats.read(path)
    name = file.relative_to(checkpoint.root).as_posix()
    windows = archives_in(checkpoint).get(name)
    if windows is None:
        return largest_record(file)
    offset, length = max(windows.items(), key=lambda item: item[1])
    return largest_record(file, offset, length)


def whole(tensor: Array) -> Box:
    return Box.whole(tensor.shape)
