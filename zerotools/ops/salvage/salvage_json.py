"""The result of salvage in its documented JSON form (docs/reference/salvage-json.md). The output
has a copy, so that a mixture of two checkpoints is not mistaken for one of them."""

from __future__ import annotations

from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint
from zerotools.formats.torch_optimizers import notes_on_weights
from zerotools.ops.salvage.salvage_plan import Salvage

SCHEMA = "zerotools.salvage/1"


def to_json(found: Salvage) -> dict[str, Any]:
    """Return the documented, versioned form."""
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
