"""Convert the keys of a torch_dist checkpoint to tensor names of the model.

    embedding.word_embeddings.weight                       a weight
    decoder.layers.mlp.linear_fc2.weight                   all layers, stacked along the first axis
    decoder.layers.7.mlp.linear_fc2.weight                 one layer
    decoder.layers.mlp.experts.experts.linear_fc1.weight   layers, then experts
    decoder.layers.7.mlp.experts.experts.3.linear_fc1.weight_w   one half of one expert's weight
    [chained_N.]optimizer.state.ROLE.KEY                   the optimizer's state of KEY
    [chained_N.]optimizer.distributed. ...                 flat buckets of an optimizer

Each tensor that is read belongs to one layer and one expert. It gets the name that it has in a
model on one rank: `decoder.layers.7.mlp.experts.local_experts.3.linear_fc1.weight`. Other tensors
keep their keys as names.

Source: megatron/core/transformer/transformer_block.py, mlp.py and moe/experts.py
(`sharded_state_dict`), optimizer/distrib_optimizer.py and optimizer.py of 0.12 to 0.16.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.dtypes import DType

_STATE = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.(?P<role>[^.]+)\.(?P<name>.+)", re.S)
_OPTIMIZER = re.compile(r"(?:chained_\d+\.)?optimizer\.", re.S)
BUCKETS = re.compile(r"(?:chained_\d+\.)?optimizer\.distributed\.dp_group_idx_\d+\.", re.S)
_RUN = ("rng_state", "rerun_state")
# Both roles mean the fp32 masters; each is used by one form of the optimizer.
_MASTERS = ("fp32_param", "param")
_LAYERS, _EXPERTS, _ONE_EXPERT = "layers.", ".experts.experts.", ".experts.local_experts."
_BUFFERS = (".router.expert_bias", ".router.local_tokens_per_expert")
_GROUPED = re.compile(r"(.*\.experts)\.(linear_fc[12])\.(weight|bias)(\d{1,6})(_[wv])?", re.S)
HALVES = ("_w", "_v")
"""The suffixes of the two halves of a gated layer, the gate first, if they are saved separately."""


def keys_of(saved: Mapping[str, DType]) -> dict[str, Key]:
    """Return the name and role of each flat key. `saved` maps the flat keys to the dtypes of their
    tensors.

    A master has the role `param`, and a 16-bit weight that has a master has the role `param16`. A
    key that names no parameter, and a second copy of a weight in the same dtype, have the role
    `state`.
    """
    states = {flat: match for flat in saved if (match := _STATE.fullmatch(flat)) is not None}
    masters = {
        match["name"]
        for flat, match in states.items()
        if match["role"] in _MASTERS and _is_wider(saved[flat], saved.get(match["name"]))
    }
    found: dict[Key, str] = {}
    for flat in saved:
        key = _key(flat, states.get(flat), masters)
        found[key if key not in found else Key(flat, "state")] = flat
    return {flat: key for key, flat in found.items()}


def _is_wider(master: DType, weight: DType | None) -> bool:
    return weight is None or master.bits > weight.bits


def _key(flat: str, state: re.Match[str] | None, masters: set[str]) -> Key:
    if state is not None:
        if state["role"] not in _MASTERS:
            return Key(state["name"], state["role"])
        return Key(state["name"], "param") if state["name"] in masters else Key(flat, "state")
    if _OPTIMIZER.match(flat) or flat.startswith(_RUN):
        return Key(flat, "state")
    if flat in masters:
        return Key(flat, "param16")
    return Key(flat, "buffer" if is_buffer(flat) else "param")


def is_buffer(name: str) -> bool:
    """Return whether a tensor with this name is a buffer, which no optimizer trains."""
    return name.endswith(_BUFFERS)


def megatron_expert_name(name: str) -> str:
    """Return the name of an expert's tensor in Megatron's own layers.

    A name from Transformer Engine's layers (`mlp.experts.linear_fc1.weight3`) is converted; any
    other name is returned unchanged.
    """
    match = _GROUPED.fullmatch(name)
    if match is None:
        return name
    experts, layer, kind, number, half = match.groups(default="")
    return f"{experts}{_ONE_EXPERT[len('.experts') :]}{number}.{layer}.{kind}{half}"


def weights_alone(tensors: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """Return the tensors without masters and moments. A 16-bit weight that had a master gets the
    role `param`.
    """
    found = {}
    for key, tensor in tensors.items():
        if key.role == "param16":
            found[Key(key.name, "param")] = tensor
        elif key.role in ("buffer", "state") or (
            key.role == "param" and Key(key.name, "param16") not in tensors
        ):
            found[key] = tensor
    return found


class Stack(NamedTuple):
    """The key of a stored tensor that contains several layers or experts.

    The key has no layer or expert numbers. A single tensor in it has such a number for each leading
    axis in its name. `parts` are the texts before, between and after these numbers:
    `("decoder.layers.", ".mlp.linear_fc2.weight")`.
    """

    parts: tuple[str, ...]

    @property
    def axes(self) -> int:
        return len(self.parts) - 1

    @property
    def of_layers(self) -> bool:
        """True if the first axis of the stored tensor counts layers."""
        return self.axes > 0 and self.parts[0].endswith(_LAYERS)

    def names(self, shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], str]]:
        """Yield (index along the leading axes, name) of each single tensor in a stored tensor of
        `shape`.
        """
        for index in product(*map(range, shape[: self.axes])):
            yield index, self.name(index)

    def name(self, index: Iterable[int]) -> str:
        """Return the name of the single tensor at `index` along the leading axes."""
        first, *others = self.parts
        return first + "".join(f"{n}{text}" for n, text in zip(index, others, strict=True))


def stack_of(name: str) -> Stack:
    """Return the stack for the key `name` of a stored tensor. Its `axes` is 0 if the tensor is not
    stacked.
    """
    parts = [name]
    at = name.find(_LAYERS)
    if at == 0 or (at > 0 and name[at - 1] == "."):
        end = at + len(_LAYERS)
        if not name[end : end + 1].isdigit():
            parts = [name[:end], f".{name[end:]}"]
    before, found, after = parts[-1].partition(_EXPERTS)
    if found:
        number = after.partition(".")[0]
        if number.isdigit():
            parts[-1] = f"{before}{_ONE_EXPERT}{after}"
        else:
            parts[-1:] = [f"{before}{_ONE_EXPERT}", f".{after}"]
    return Stack(tuple(parts))
