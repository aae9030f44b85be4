"""Take frozen embeddings of an adapter run from PEFT's own file next to it.

If the vocabulary of a model was enlarged before training, PEFT saves the embedding and the output
layer with the adapter. The Trainer with DeepSpeed saves only trained weights in DeepSpeed's files,
so these frozen weights are only in `adapter_model.safetensors` of the same checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zerotools import formats
from zerotools.core.adapter_tensor_names import (
    DEFAULT,
    PREFIX,
    A,
    AdapterTensor,
    B,
    is_adapter_checkpoint,
    plain_name,
)
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.formats import FormatTable
from zerotools.io.huggingface.model_sidecars import find_nearest
from zerotools.ops.weights.adapter_config import ADAPTER_CONFIG
from zerotools.ops.weights.add_base_model_weights import joined_files, moved_below
from zerotools.ops.weights.merged_config import HEADS, is_token_embedding

_FILES = ("adapter_model.safetensors", "adapter_model.bin")


def with_saved_embeddings(
    held: Checkpoint, tensors: Sequence[AdapterTensor], name: str, table: FormatTable
) -> tuple[Checkpoint, list[str]]:
    """Return `held` with the embedding and output layer that only PEFT's file has, and a note on
    them.

    `tensors` are the tensors of the adapter `name` in `held`. PEFT's file is next to the nearest
    adapter_config.json. It is used only if `held` has no weights of the base model, and if the file
    has the same adapter: the same LoRA matrices with the same shapes.

    Raises:
        BadFile: PEFT's file is damaged.
    """
    if not is_adapter_checkpoint(held.tensors):
        return held, []
    places = [f"{name}/{ADAPTER_CONFIG}"] if name != DEFAULT else []
    found = (find_nearest(held.root, place) for place in (*places, ADAPTER_CONFIG))
    directory = next((path.parent for path in found if path is not None), None)
    if directory is None:
        return held, []
    file = next((p for each in _FILES if (p := directory / each).is_file()), None)
    if file is None or str(file) in {str(held.root / each) for each in held.files}:
        return held, []
    saved = formats.read(file, table=table)
    shapes = {key.name: tensor.shape for key, tensor in saved.tensors.items()}
    halves = {t.saved: held.tensors[t.key].shape for t in tensors if t.part in (A, B)}
    if any(shapes.get(half) != shape for half, shape in halves.items()):
        return held, []
    own = {plain_name(key.name) for key in held.tensors}
    frozen = {
        Key(key.name, "param"): tensor
        for key, tensor in saved.tensors.items()
        if (plain := key.name.removeprefix(PREFIX)) not in own
        and (is_token_embedding(plain) or plain in HEADS)
    }  # fmt: skip
    if not frozen:
        return held, []
    joined = joined_files(held, saved)
    tensors_of_both = {
        **{key: moved_below(tensor, joined.of_run) for key, tensor in held.tensors.items()},
        **{key: moved_below(tensor, joined.of_other) for key, tensor in frozen.items()},
    }
    whole = replace(
        held,
        root=joined.root,
        tensors=tensors_of_both,
        files=joined.files,
        archives=joined.archives,
        stamps={**held.stamps, **saved.stamps},
    )
    names = " and ".join(plain_name(key.name) for key in frozen)
    return whole, [f"took {names} from {file}, because the checkpoint has only trained weights"]
