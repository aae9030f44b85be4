"""A model and one of its PEFT adapters: the weights under the names of the model, and the changes
that the adapter makes to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from zerotools.core.adapter_tensor_names import (
    EMBEDDING_A,
    EMBEDDING_B,
    MAGNITUDE,
    SAVED_WHOLE,
    TOKENS,
    A,
    AdapterTensor,
    B,
    adapter_of,
    is_replaced,
    plain_name,
)
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.ops.weights.adapter_arithmetic import Change, Layout, Offset, Product, Rows
from zerotools.ops.weights.adapter_config import ADAPTER_CONFIG, scale_of, token_indices

_ROLES = ("param", "buffer")
# Kinds of LoRA with a layer that no sum of weights equals, or with another sum than here.
_NO_SUM = (
    "alora_invocation_tokens", "arrow_config", "use_qalora", "use_bdlora", "kasa_config",
    "monteclora_config", "layer_replication",
)  # fmt: skip

_OUTPUTS_FIRST = (0, 19)
"""The first version of PEFT that takes the layout of experts from the model."""


@dataclass(frozen=True)
class AdaptedModel:
    """A model, and the changes that one adapter makes to it.

    Attributes:
        weights: the weights without the adapter.
        changes: the changes to each weight that the adapter changes.
        halves: the tensors of the adapter that `changes` refers to.
        is_mapped: True if the base model was converted to another layout.
    """

    weights: Checkpoint
    changes: Mapping[Key, tuple[Change, ...]]
    halves: Checkpoint
    is_mapped: bool = False


class WrongBaseModel(BadRequest):
    """An adapter changes a weight that the checkpoint does not have."""


def adapted_weights(
    weights: Checkpoint,
    adapter: Checkpoint,
    tensors: Sequence[AdapterTensor],
    config: Mapping[str, Any],
    is_transposed: Callable[[str], bool | None] = lambda _: None,
) -> AdaptedModel:
    """Return the model `weights` with the changes that `tensors` of the checkpoint `adapter` make.
    `is_transposed` returns whether a module stores its weight as (in, out); None: unknown.

    Raises:
        WrongBaseModel: a weight is missing, or packed into a few bits.
        BadRequest: the adapter does not fit the weights.
        BadFile: one of the two matrices for a layer is missing.
        Unsupported: this kind of adapter cannot be expressed as a sum of weights.
    """
    _refuse_no_sum(config, adapter)
    before = weights.aliases
    weights, tensors = _untied(weights, tensors, config)
    model = _Model(weights, adapter, tensors, config, is_transposed)
    changes: dict[Key, list[Change]] = {}
    for parts in _layers(tensors):
        for key, change in model.changes(parts):
            known = changes.setdefault(key, [])
            if not isinstance(change, Rows) or not any(isinstance(each, Rows) for each in known):
                known.append(change)
    untied = {alias: name for alias, name in before.items() if alias not in weights.aliases}
    return AdaptedModel(weights, _with_rows_of_untied(changes, untied), adapter)


def _with_rows_of_untied(
    changes: Mapping[Key, Sequence[Change]], untied: Mapping[str, str]
) -> dict[Key, tuple[Change, ...]]:
    """Return the changes in the order of PEFT, which first replaces rows. A weight in `untied` gets
    the rows of the weight to which it was tied, because PEFT saves them once."""
    found = {key: [*each] for key, each in changes.items()}
    for alias, name in untied.items():
        own = found.setdefault(Key(alias, "param"), [])
        if not any(isinstance(each, Rows) for each in own):
            own += [c for c in found.get(Key(name, "param"), ()) if isinstance(c, Rows)]
    return {
        key: tuple(sorted(each, key=lambda change: not isinstance(change, Rows)))
        for key, each in found.items()
        if each
    }


def plain_weights(held: Checkpoint, name: str) -> Checkpoint:
    """Return the weights of a run that trained the adapter `name`, under the names of the model. A
    module that the adapter has as a whole replaces that of the model. Other adapters are omitted.
    """
    whole: dict[Key, Tensor] = {}
    tensors: dict[Key, Tensor] = {}
    dropped: set[str] = set()
    saved = {
        each.partition(f".{SAVED_WHOLE}.")[0]
        for each in (*(key.name for key in held.tensors), *held.aliases)
        if _is_saved_whole(each, name)
    }
    for key, tensor in held.tensors.items():
        plain = Key(plain_name(key.name), key.role)
        adapter = adapter_of(key)
        if _is_saved_whole(key.name, name):
            whole[plain] = tensor
        elif adapter is not None or is_replaced(key.name, saved):
            dropped.add(key.name)
        else:
            tensors[plain] = tensor
    tensors |= whole
    names = {key.name for key in tensors}
    aliases: dict[str, str] = {}
    for alias, holder in held.aliases.items():
        own, other = plain_name(alias), plain_name(holder)
        if _is_saved_whole(alias, name):
            aliases[own] = other
        elif own in names or adapter_of(Key(alias, "param")) is not None:
            continue
        elif holder in dropped:
            if not is_replaced(alias, saved) and Key(holder, "param") in held.tensors:
                tensors[Key(own, "param")] = held.tensors[Key(holder, "param")]
        elif own != other:
            aliases[own] = other
    return replace(held, tensors=tensors, aliases=aliases)


def _is_saved_whole(tensor: str, adapter: str) -> bool:
    return f".{SAVED_WHOLE}." in tensor and adapter_of(Key(tensor, "param")) == adapter


def _untied(
    weights: Checkpoint, tensors: Sequence[AdapterTensor], config: Mapping[str, Any]
) -> tuple[Checkpoint, Sequence[AdapterTensor]]:
    """Return the weights and the adapter tensors for a merge. Tied layers get weights of their own
    if one of them has an adapter, because each of them then computes with its own sum.

    With `ensure_weight_tying` in the config they stay tied, and have one adapter.
    """
    modules = {each.module for each in tensors if each.part in (A, EMBEDDING_A)}
    tied = {
        alias: name
        for alias, name in weights.aliases.items()
        if not modules.isdisjoint((_module(alias), _module(name)))
        and Key(name, "param") in weights.tensors
    }
    if config.get("ensure_weight_tying"):
        twice = {_module(alias) for alias, name in tied.items() if _module(name) in modules}
        return weights, [each for each in tensors if each.module not in twice]
    own = {Key(a, "param"): weights.tensors[Key(name, "param")] for a, name in tied.items()}
    aliases = {a: name for a, name in weights.aliases.items() if a not in tied}
    return replace(weights, tensors={**weights.tensors, **own}, aliases=aliases), tensors


def _module(weight: str) -> str:
    return weight.removesuffix(".weight")


def _layers(tensors: Iterable[AdapterTensor]) -> list[list[AdapterTensor]]:
    """Return the tensors in groups, one for each layer or wrapped parameter. PEFT may wrap several
    parameters of one module."""
    found: dict[str, list[AdapterTensor]] = {}
    for each in tensors:
        if each.part not in (SAVED_WHOLE, "bias"):
            found.setdefault(each.stem, []).append(each)
    return list(found.values())


def _refuse_no_sum(config: Mapping[str, Any], adapter: Checkpoint) -> None:
    odd = next((key for key in _NO_SUM if config.get(key)), None)
    if odd is not None:
        raise Unsupported(
            f"{adapter.origin.path}: {ADAPTER_CONFIG} has {odd}, but zerotools does not merge "
            "this kind of adapter; export it with --adapter-only and load it with PEFT"
        )


class _Model:
    """The weights of a model, and one adapter that is added to them."""

    def __init__(
        self,
        weights: Checkpoint,
        adapter: Checkpoint,
        tensors: Sequence[AdapterTensor],
        config: Mapping[str, Any],
        is_transposed: Callable[[str], bool | None],
    ) -> None:
        self._weights = weights
        self._adapter = adapter
        self._tensors = tensors
        self._config = config
        self._is_transposed = is_transposed
        self._of_leaves: dict[str, bool] | None = None

    def changes(self, parts: Sequence[AdapterTensor]) -> list[tuple[Key, Change]]:
        """Return the changes that the adapter tensors `parts` of one layer make, each with the key
        of its weight."""
        module = parts[0].module
        matrices = {each.part: each.key for each in parts if not each.saved.endswith(".bias")}
        offset = next((each.key for each in parts if each.saved.endswith(".bias")), None)
        found: list[tuple[Key, Change]] = []
        if TOKENS in matrices:
            found.append(self._tokens(module, matrices[TOKENS]))
        for down, up in ((A, B), (EMBEDDING_A, EMBEDDING_B)):
            if (down in matrices) != (up in matrices):
                lacking = up if down in matrices else down
                raise BadFile(
                    f"{self._path}: the adapter of {module} has no {lacking}; copy or download it "
                    "again"
                )
            if down in matrices:
                halves = matrices[down], matrices[up], matrices.get(MAGNITUDE)
                found.append(self._product(module, down == EMBEDDING_A, halves, parts[0].stem))
        if offset is not None:
            key = self._weight(f"{module}.bias")
            if key is None:
                raise self._lacks(f"{module}.bias")
            found.append((key, Offset(offset, scale_of(self._config, module))))
        return found

    @property
    def _path(self) -> object:
        return self._adapter.origin.path

    def _shape(self, key: Key) -> tuple[int, ...]:
        return self._adapter.tensors[key].shape

    def _tokens(self, module: str, values: Key) -> tuple[Key, Change]:
        key = self._weight(f"{module}.weight")
        if key is None:
            raise self._lacks(f"{module}.weight")
        indices = token_indices(self._config, module)
        rows, shape = self._weights.tensors[key].shape[0], self._shape(values)
        if len(indices) != shape[0] or any(not 0 <= each < rows for each in indices):
            raise BadRequest(
                f"{self._path}: {ADAPTER_CONFIG} lists {len(indices)} trainable_token_indices for "
                f"{module}, which has {rows} rows, but {shape[0]} were trained; pass the "
                f"{ADAPTER_CONFIG} of this run with --adapter-config"
            )
        return key, Rows(values, tuple(indices))

    def _product(
        self, module: str, is_embedding: bool, halves: tuple[Key, Key, Key | None], stem: str
    ) -> tuple[Key, Change]:
        down, up, magnitude = halves
        key = self._weight(f"{module}.weight") or self._weight(f"{module}.in_proj_weight")
        if key is None or stem.endswith(".base_layer"):
            return self._of_parameter(module, down, up)
        shape, scale = self._weights.tensors[key].shape, scale_of(self._config, module)
        layout = Layout.TRANSPOSED
        if not is_embedding:
            layout = self._layout(module, key, shape, (down, up))
        wanted = (
            (self._shape(down)[1], self._shape(up)[0])
            if layout is Layout.TRANSPOSED
            else (self._shape(up)[0], *self._shape(down)[1:])
        )
        self._require(key, wanted)
        return key, Product(down, up, scale, layout, magnitude)

    def _layout(
        self, module: str, key: Key, shape: tuple[int, ...], halves: tuple[Key, Key]
    ) -> Layout:
        down, up = (self._shape(each) for each in halves)
        said = self._is_transposed(module)
        if said is None and (len(shape) != 2 or shape[0] != shape[1]):
            said = len(shape) == 2 and shape == (down[1], up[0])
        elif said is None:
            said = self._by_leaf().get(_leaf(module), bool(self._config.get("fan_in_fan_out")))
        return Layout.TRANSPOSED if said else Layout.ROWS

    def _by_leaf(self) -> dict[str, bool]:
        """Return whether layers store their weights transposed, keyed by the last part of their
        names, such as `c_attn`.

        Only layers with a bias and a weight that is not square are in the dict. The length of the
        bias shows which dimension of the weight has the outputs.
        """
        if self._of_leaves is None:
            self._of_leaves = {}
            for key, tensor in self._weights.tensors.items():
                stem, dot, leaf = key.name.rpartition(".")
                bias = self._weight(f"{stem}.bias") if dot and leaf == "weight" else None
                if bias is not None and len(tensor.shape) == 2:
                    rows, columns = tensor.shape
                    (outputs,) = self._weights.tensors[bias].shape
                    if rows != columns and outputs in (rows, columns):
                        self._of_leaves[_leaf(stem)] = outputs == columns
        return self._of_leaves

    def _of_parameter(self, module: str, down: Key, up: Key) -> tuple[Key, Change]:
        """Return the change of one parameter of a module. PEFT does not store the parameter's name,
        so its shape identifies it."""
        leaves = self._leaves()
        keys = [key for leaf in leaves if (key := self._weight(f"{module}.{leaf}")) is not None]
        if not keys:
            leaf = leaves[0] if leaves else "weight"
            raise self._lacks(f"{module}.{leaf}")
        inputs, outputs = self._shape(down)[1], self._shape(up)[0]
        ranks = self._shape(down)[0]
        fits: list[tuple[Key, Layout]] = []
        for key in keys:
            shape = self._weights.tensors[key].shape
            if len(shape) == 2 and shape == (outputs, inputs):
                fits.append((key, Layout.ROWS))
            elif len(shape) == 3 and ranks % shape[0] == 0:
                if shape[1:] == (outputs, inputs) == (inputs, outputs):
                    fits.append((key, self._layout_of_experts(module, shape)))
                elif shape[1:] == (outputs, inputs):
                    fits.append((key, Layout.EXPERTS))
                elif shape[1:] == (inputs, outputs):
                    fits.append((key, Layout.EXPERTS_TRANSPOSED))
        if len(fits) != 1:
            shapes = ", ".join(f"{k.name} {list(self._weights.tensors[k].shape)}" for k in keys)
            which = "several of" if fits else "none of"
            raise BadRequest(
                f"{self._path}: the adapter of {module} has {inputs} inputs and {outputs} "
                f"outputs, which fit {which} {shapes}; merge it with PEFT's merge_and_unload"
            )
        key, layout = fits[0]
        scale = scale_of(self._config, key.name)
        return key, Product(down, up, scale, layout)

    def _layout_of_experts(self, module: str, shape: tuple[int, ...]) -> Layout:
        """Return the layout of experts with square matrices. Their shape does not show it.

        If the adapter has experts that are not square, they have the same layout. Otherwise the
        layout follows from the version of PEFT and from the model. PEFT before 0.19 treated the
        first dimension of the matrices of all experts as their inputs.
        """
        others = self._layout_of_other_experts()
        if others is not None:
            return others
        if _release(self._config) < _OUTPUTS_FIRST:
            return Layout.EXPERTS_TRANSPOSED
        beside = self._weight(f"{module}.gate_up_proj")
        other = () if beside is None else self._weights.tensors[beside].shape
        is_transposed = self._is_transposed(module)
        if is_transposed is None and len(other) == 3 and other[1] != other[2]:
            is_transposed = other[2] == 2 * shape[1]  # gate and up have twice the outputs of one
        if is_transposed is not None:
            return Layout.EXPERTS_TRANSPOSED if is_transposed else Layout.EXPERTS
        raise Unsupported(
            f"{self._path}: the experts of {module} have the square shape {list(shape)}, which "
            "does not show whether inputs or outputs come first; merge the adapter with PEFT's "
            "merge_and_unload"
        )

    def _layout_of_other_experts(self) -> Layout | None:
        """Return the layout of experts with matrices that are not square; None if there are
        none."""
        for parts in _layers(self._tensors):
            halves = {each.part: each.key for each in parts}
            if A not in halves or B not in halves:
                continue
            sizes = self._shape(halves[B])[0], self._shape(halves[A])[1]
            for leaf in self._leaves():
                key = self._weight(f"{parts[0].module}.{leaf}")
                shape = () if key is None else self._weights.tensors[key].shape
                if len(shape) == 3 and sizes[0] != sizes[1]:
                    if shape[1:] == sizes:
                        return Layout.EXPERTS
                    if shape[1:] == sizes[::-1]:
                        return Layout.EXPERTS_TRANSPOSED
        return None

    def _leaves(self) -> list[str]:
        named = self._config.get("target_parameters") or ()
        return list(dict.fromkeys(str(each).rpartition(".")[2] for each in named))

    def _weight(self, name: str) -> Key | None:
        holder = self._weights.aliases.get(name, name)
        keys = (Key(holder, role) for role in _ROLES)
        return next((key for key in keys if key in self._weights.tensors), None)

    def _lacks(self, name: str) -> WrongBaseModel:
        return WrongBaseModel(
            f"{self._path} has an adapter for {name}, which the base model does not have; name the "
            "base model of this adapter with --base"
        )

    def _require(self, key: Key, wanted: tuple[int, ...]) -> None:
        tensor = self._weights.tensors[key]
        total = prod(wanted)
        packed = not tensor.dtype.is_float or tensor.dtype.bits < 16
        if packed or (tensor.shape != wanted and tensor.numel * tensor.dtype.itemsize * 2 == total):
            raise WrongBaseModel(
                f"{key} is packed as {tensor.dtype} {list(tensor.shape)}, but an adapter needs "
                "weights of 16 bits or more"
            )
        if tensor.shape != wanted:
            raise BadRequest(
                f"{key} has shape {list(tensor.shape)}, but its adapter is for shape "
                f"{list(wanted)}: this is not the base model of the adapter; name the right one "
                "with --base"
            )


def _release(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the version of PEFT that wrote the config, as (major, minor); (0, 0) for versions
    before 0.18, which do not record themselves."""
    found = re.match(r"(\d+)\.(\d+)", str(config.get("peft_version")))
    return (0, 0) if found is None else (int(found[1]), int(found[2]))


def _leaf(module: str) -> str:
    return module.rpartition(".")[2]
