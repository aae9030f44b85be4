"""The extra states (fp8 scales) that layers request when a checkpoint is loaded; all are empty.

    decoder.layers.mlp.linear_fc2._extra_state/shard_7_32                     layer 7 of 32
    decoder.layers.mlp.experts.experts.linear_fc2._extra_state/shard_7.3_32.8 expert 3 of 8 in it
    decoder.final_layernorm._extra_state/shard_0_1                            not stacked

Every parallel layer requests one by its name, and in Transformer Engine also every norm and the
attention. A state that no layer requests is not read. Layers take None as an empty state.

Source: megatron/core/transformer/utils.py (`make_sharded_object_for_checkpoint`) of 0.16.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from zerotools.formats.megatron.writing.stored_places import StoredPlace

_END = ".weight"
_ATTENTION, _PROJECTION = "self_attention.core_attention", "self_attention.linear_proj"
_NONE = re.compile(r"embedding\..*|output_layer|.*\.router")
EMPTY = [None]
"""An empty extra state: an object is saved as a list of one."""


def extra_state_keys(place: StoredPlace, counts: tuple[int, ...]) -> Iterator[str]:
    """Yield the keys of the extra states that belong to the weight at `place`; `counts` are the
    parts of its key along the leading axes."""
    module = place.flat.removesuffix(_END)
    if module == place.flat or _NONE.fullmatch(module):
        return
    where = "shard_0_1"
    if counts:
        where = f"shard_{'.'.join(map(str, place.index))}_{'.'.join(map(str, counts))}"
    yield f"{module}._extra_state/{where}"
    if module.endswith(_PROJECTION):
        yield f"{module.removesuffix(_PROJECTION)}{_ATTENTION}._extra_state/{where}"
