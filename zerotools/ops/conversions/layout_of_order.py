"""Name numbered optimizer state by the order of a model in memory, if files have another layout.

transformers joins the experts of a layer in memory, and has other names there for models with
images or sound. An optimizer has the parameters in memory; `save_pretrained` writes the weights in
the layout of the Hub. So the weights get the layout in memory, before the state gets their names.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.core.training_state import TrainingState
from zerotools.formats.torch_optimizers import WEIGHT_ROLES
from zerotools.maps.hub_tensor_names import FUSED
from zerotools.maps.transformers_names import MEMORY
from zerotools.ops.resume_from_other_program.name_numbered_state import NamedCheckpoint, with_names
from zerotools.ops.resume_from_other_program.order_option import AskedOrder
from zerotools.ops.weights.layout_mapping import MapRequest, mapped_checkpoint


def with_names_of_model(
    checkpoint: Checkpoint, training: TrainingState, order: AskedOrder
) -> tuple[NamedCheckpoint, list[str]]:
    """Return `checkpoint` with the names in `order` for its numbered optimizer state, and notes.

    Raises:
        BadRequest: as `with_names`.
    """
    try:
        return with_names(checkpoint, training, order), []
    except BadRequest:
        found = None if order.shapes is None else _in_memory(checkpoint, training, order)
        if found is None:
            raise
    laid_out, layout = found
    note = f"the weights get the layout {layout}, which they had in the memory of the optimizer"
    return with_names(laid_out, training, order), [note]


def _in_memory(
    checkpoint: Checkpoint, training: TrainingState, order: AskedOrder
) -> tuple[Checkpoint, str] | None:
    """Return the checkpoint with its weights in a layout that has the names in `order`, and the
    name of the layout; None if there is no such layout."""
    weights = {
        key: tensor
        for key, tensor in checkpoint.tensors.items()
        if key.role in WEIGHT_ROLES and key.name not in training.unnamed
    }
    state = {key: t for key, t in checkpoint.tensors.items() if key not in weights}
    alone = replace(checkpoint, tensors=weights)
    for layout in (MEMORY, FUSED):
        with suppress(ZerotoolsError):
            made = mapped_checkpoint(alone, MapRequest(to=layout)).checkpoint
            if {*(key.name for key in made.tensors), *made.aliases}.issuperset(order.names):
                return replace(made, tensors={**made.tensors, **state}), layout
    return None
