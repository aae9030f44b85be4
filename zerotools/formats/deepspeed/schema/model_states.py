"""The content of a `*_model_states.pt`: weights, buffers, and the parameter order of flat buffers.

The keys depend on the version. `param_shapes` lists, per param group (stage 3: per sub-group), the
trainable parameters in the order of the flat buffer. Nothing else in a checkpoint records this
order. Before 0.6.0, `param_shapes` was in the optimizer file.

Source: DeepSpeed `runtime/engine.py`, `_save_checkpoint` and `_get_zero_param_shapes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from zerotools.core.errors import Unsupported
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.expert_parallel import StackedExperts, stacked_experts_of
from zerotools.formats.deepspeed.schema.typed_fields import Fields, shapes_of
from zerotools.io.torchzip.pickle_values import StoredTensor
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tree_tensors import as_tensor, why_unread

Value = TypeVar("Value")
Shapes = dict[str, tuple[int, ...]]

CHECKPOINTED = "_checkpoint_wrapped_module."
"""The text that torch's activation checkpointing wrapper adds to parameter names.

State dicts, and so `module`, leave this text out; `param_shapes` and the other lists have it.
"""


@dataclass(frozen=True)
class ModelStates:
    """The checked content of one model file.

    `module` has the weights, under the parameter names that the other lists in the file use. It is
    None for a pipeline, because layer files hold the weights. `groups` is `param_shapes`, with the
    names and shapes of the parameters in each flat buffer. It is None if the run had no ZeRO
    optimizer, or if the optimizer file has the shapes. `fragments` are the frozen parameters: whole
    tensors at stage 2, this rank's partitions at stage 3.
    """

    file: TorchFile
    fields: Fields
    module: Mapping[str, StoredTensor] | None
    groups: list[Shapes] | None
    buffer_names: frozenset[str] | None
    shared: Mapping[str, str]
    frozen_shapes: Shapes
    fragments: Mapping[str, StoredTensor]

    @property
    def data_parallel_size(self) -> int | None:
        return self.fields.rank_count(state_dict_keys.DP_WORLD_SIZE)

    @property
    def model_parallel_size(self) -> int | None:
        """The number of model-parallel ranks: pipeline stages x tensor-parallel ranks."""
        return self.fields.rank_count(state_dict_keys.MP_WORLD_SIZE)

    @property
    def version(self) -> str | None:
        saved = self.fields.maybe(state_dict_keys.DS_VERSION, str)
        return None if saved is None else saved.strip()

    @property
    def global_steps(self) -> int | None:
        return self.fields.maybe(state_dict_keys.GLOBAL_STEPS, int)

    @property
    def ds_config(self) -> Any:
        """The run's DeepSpeed configuration, unchecked: in a damaged file, it may not be a dict."""
        return self.fields.tree.get(state_dict_keys.DS_CONFIG)

    @property
    def optimizer(self) -> Any:
        """The value of `optimizer` in the model file: the optimizer of a run without ZeRO."""
        return self.fields.tree.get(state_dict_keys.OPTIMIZER)

    @property
    def num_experts(self) -> Any:
        """A list with the number of experts in each layer that has experts. It is unchecked: in a
        damaged file, it may not be a list.
        """
        return self.fields.tree.get(state_dict_keys.NUM_EXPERTS)

    @property
    def stacked_experts(self) -> StackedExperts:
        """The experts of AutoEP.

        Raises:
            BadFile, Unsupported: see `stacked_experts_of`.
        """
        tree = self.fields.tree
        layers = tree.get(state_dict_keys.AUTOEP_LAYERS) or tree.get(
            state_dict_keys.AUTOEP_LAYERS_BEFORE
        )
        return stacked_experts_of(self.file.path, layers)

    @property
    def is_folded(self) -> bool:
        """True if tensor-parallel ranks share AutoEP's experts."""
        return state_dict_keys.FOLDING in self.fields

    @property
    def client_state(self) -> dict[str, Any]:
        return {
            key: value
            for key, value in self.fields.tree.items()
            if key not in state_dict_keys.OWN_KEYS
        }


def parse_model(file: TorchFile) -> ModelStates:
    """Check a whole model file, and return its content.

    Raises:
        BadFile: a key is missing or has another type.
    """
    fields = Fields(file.path, file.tree)
    module = fields.maybe(state_dict_keys.MODULE, dict)
    names = fields.maybe(state_dict_keys.BUFFER_NAMES, list)
    groups, shared = parse_groups(fields), _aliases(fields)
    frozen = shapes_of(fields.maybe(state_dict_keys.FROZEN_SHAPES, dict) or {}, file.path)
    listed = [*(name for group in groups or () for name in group), *frozen, *shared]
    return ModelStates(
        file=file,
        fields=fields,
        module=None
        if module is None
        else as_listed(tensors_of(module, file.path), [*listed, *map(str, names or ())]),
        groups=groups,
        buffer_names=None if names is None else frozenset(map(str, names)),
        shared=shared,
        frozen_shapes=frozen,
        fragments=tensors_of(fields.maybe(state_dict_keys.FROZEN_FRAGMENTS, dict) or {}, file.path),
    )


def as_listed(module: Mapping[str, Value], listed: Iterable[str]) -> dict[str, Value]:
    """Return the state dict `module` with the names in `listed`, the parameter lists of the file.

    Only the part of a name that activation checkpointing adds may differ.
    """
    names = {name.replace(CHECKPOINTED, ""): name for name in listed if CHECKPOINTED in name}
    return {names.get(name, name): value for name, value in module.items()}


def parse_groups(fields: Fields) -> list[Shapes] | None:
    """Parse `param_shapes`: a list with one mapping of names to shapes for each group or sub-group
    (up to DeepSpeed 0.5.3, a single mapping). Return None if it is absent.
    """
    value = fields.tree.get(state_dict_keys.PARAM_SHAPES)
    if value is None:
        return None
    if isinstance(value, dict):
        return [shapes_of(value, fields.path)]
    return [
        shapes_of(group, fields.path) for group in fields.need(state_dict_keys.PARAM_SHAPES, list)
    ]


def tensors_of(mapping: Mapping[Any, Any], path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a state dict; other values, such as `_extra_state`, are left out.

    Raises:
        Unsupported: zerotools does not read this kind of tensor, such as a sparse tensor.
    """
    found = {}
    for name, value in mapping.items():
        tensor = as_tensor(value)
        if tensor is not None:
            found[str(name)] = tensor
        elif not str(name).endswith("_extra_state") and (why := why_unread(value)) is not None:
            raise Unsupported(f"{path}: {name!s:.200} is {why}")
    return found


def _aliases(fields: Fields) -> dict[str, str]:
    shared = fields.maybe(state_dict_keys.SHARED_PARAMS, dict) or {}
    return {str(alias): str(name) for alias, name in shared.items() if alias != name}


def tied_in_module(module: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Return {alias: first name} for each name in `module` that has exactly the same elements as
    an earlier name.

    Before 0.9.2 this is the only record of tied weights.
    """
    first: dict[tuple[object, ...], str] = {}
    aliases = {}
    for name, tensor in module.items():
        if 0 in tensor.shape:
            continue
        place = (tensor.storage.key, tensor.offset, tensor.shape, tensor.strides, tensor.dtype)
        known = first.setdefault(place, name)
        if known != name:
            aliases[name] = known
    return aliases
