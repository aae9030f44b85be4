"""`zerotools salvage`: examine a damaged checkpoint, plan the export, and describe it as JSON
(docs/reference/salvage-json.md). The output holds a copy of this JSON, which tells which values
come from another checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.target import Target
from zerotools.formats.torch_optimizers import notes_on_weights
from zerotools.io.output.files_without_tensors import file_of_bytes
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.salvage.checkpoint_to_fill_from import read_other, used_files
from zerotools.ops.salvage.examine_damage import ToExamine, examine_checkpoint
from zerotools.ops.salvage.salvage_plan import RECORD, Salvage, SalvageOptions, plan_salvage


def prepare_salvage(
    given: ToExamine,
    destination: Path,
    options: SalvageOptions,
    *,
    fill_from: Path | None = None,
    config_dir: Path | None = None,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Salvage:
    """Examine every byte of the checkpoint, and plan the export of its weights. In the checkpoint
    `fill_from`, only the files that fill holes are examined. Nothing is written.

    Raises:
        BadRequest: `fill_from` does not exist or has another model, or no weight is selected.
        BadFile: `fill_from` is not a checkpoint, or is too damaged to be read.
        Unsupported: weights are not equal to the cast of their masters, or zerotools does not read
            the format of `fill_from`.
    """
    other = None
    if fill_from is not None:
        other = read_other(
            fill_from, options.naming(), destination, given.table, request=options.adapter
        )
    examined = examine_checkpoint(given, budget, on_bytes)
    found = plan_salvage(examined, destination, options, other, config_dir=config_dir)
    if other is not None:
        used = set(used_files(found.weights.values(), other))
        checked = other.checked(used, budget)
        found = plan_salvage(examined, destination, options, checked, config_dir=config_dir)
    return _recorded(found)


def _recorded(found: Salvage) -> Salvage:
    """Return the plan with its JSON record added to the files of the output."""
    conversion = found.conversion
    if conversion is None:
        return found
    text = json.dumps(to_json(found), indent=1) + "\n"
    plans = {**conversion.target.files, RECORD: file_of_bytes(text.encode())}
    sizes = {name: each.size for name, each in plans.items()}
    checkpoint = replace(conversion.target.checkpoint, files=sizes)
    target: Target = replace(conversion.target, files=plans, checkpoint=checkpoint)
    return replace(found, conversion=replace(conversion, target=target))


SCHEMA = "zerotools.salvage/1"


def to_json(found: Salvage) -> dict[str, Any]:
    """Return the form that docs/reference/salvage-json.md documents."""
    examined, other = found.examined, found.other
    checkpoint = examined.checkpoint
    remains = examined.given.remains
    return {
        "schema": SCHEMA,
        **_origin(checkpoint),
        "fill_from": None if other is None else _origin(other.checkpoint),
        "whole": examined.is_whole,
        "complete": found.is_complete,
        "damage": [
            {"file": problem.file, "tensor": problem.tensor, "message": problem.message}
            for problem in examined.damage
        ],
        "unchecked": list(examined.unchecked),
        "tensors": len(checkpoint.tensors),
        "holes": [
            {
                "name": key.name,
                "role": key.role,
                "dtype": holes.dtype.name,
                "shape": list(holes.shape),
                "lost": holes.elements,
                **_boxes(holes.boxes, holes.ranges),
                "files": list(holes.files),
                "why": holes.why,
            }
            for key, holes in examined.holes.items()
        ],
        "lost_names": [{"name": n, "file": file} for n, file in remains.lost_names.items()],
        "unnamed": list(remains.unnamed),
        "weights": [key.name for key in found.weights],
        "filled": [
            {
                "name": key.name,
                "dtype": part.dtype.name,
                "source": part.source,
                "elements": sum(box.numel for box in part.boxes),
                **_boxes(part.boxes, part.ranges),
            }
            for key, part in found.filled
        ],
        "left_out": [{"name": name, "why": why} for name, why in found.left_out.items()],
        "rounded": list(found.rounded),
        "notes": [*notes_on_weights(checkpoint.origin.notes), *examined.given.notes, *found.notes],
    }


def _origin(checkpoint: Checkpoint) -> dict[str, Any]:
    origin = checkpoint.origin
    return {"path": str(origin.path), "format": origin.format, "step": origin.step}


def _boxes(boxes: tuple[Box, ...], ranges: tuple[tuple[int, int], ...] | None) -> dict[str, Any]:
    return {
        "boxes": [{"start": list(box.start), "shape": list(box.shape)} for box in boxes],
        "ranges": None if ranges is None else [list(each) for each in ranges],
    }
