"""Finds which tensors of a Hugging Face directory fill each parameter of a model, according to the
rules of transformers.

transformers' own loading code runs on a copy of the meta model, with tensors that have no values
and record how they are used (`trace_weight_conversion`). So the rules of the installed release of
transformers apply, for example for fused experts, name prefixes, multimodal models and older names.
Later, a rank reads only the blocks that fill its shard.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    convert_and_load_state_dict_in_model,
    revert_weight_conversion,
)
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils import logging as transformers_logging

from zerotools.core.errors import BadRequest
from zerotools.core.hub_layout import HubBlock, HubLayout, is_unchanged
from zerotoolsd.trainer.model.hub_tensors import (
    HubTensor,
    refuse_quantised,
    same_values,
    stored_tensors,
)
from zerotoolsd.trainer.model.trace_weight_conversion import (
    TracedTensor,
    blocks_of,
    symbolic_tensor,
)

LISTED = 4
"""Largest number of tensor names that a message lists."""


class ShapeMismatch(BadRequest):
    """A tensor has another shape in a directory than in the model. The message has both shapes."""


@dataclass(frozen=True)
class Pretrained:
    """The tensors of a directory that fill the parameters of a model.

    `blocks` has, for each parameter and persistent buffer, the blocks of stored tensors that fill
    it. `stored` are the tensors in the directory. `unused` are stored tensors that the model does
    not have, without the tensors that transformers expects to be unused. `initial` are weights that
    the directory lacks; they get initial values.
    """

    directory: Path
    blocks: HubLayout
    stored: Mapping[str, HubTensor] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    initial: tuple[str, ...] = ()

    def notes(self) -> Iterator[str]:
        """Yield notes on stored tensors that are not used, and on weights that the directory
        lacks.
        """
        if self.unused:
            yield f"{self.directory}: the model does not use {_listed(self.unused)}"
        if self.initial:
            yield f"{self.directory} lacks {_listed(self.initial)}, which get initial values"


def match_directory(model: Any, aliases: Mapping[str, str], directory: Path) -> Pretrained:
    """Find the tensors in `directory` that fill the parameters of `model`.

    `model` is on the meta device and has no adapters. `aliases` maps other names of tied parameters
    to their first names.

    Raises:
        BadRequest: the directory has no safetensors, or their names or shapes do not fit the model.
        BadFile: a safetensors file is damaged.
    """
    stored = stored_tensors(directory)
    refuse_quantised(stored, model.config)
    loaded, info = _load(model, {name: tensor.shape for name, tensor in stored.items()})
    _refuse_shapes(model, info, stored, directory)
    _refuse_untied(loaded, aliases, stored, directory)
    held = {aliases.get(name, name) for name in loaded}
    missing = {aliases.get(name, name) for name in info.missing_keys} - held
    unused = sorted(info.unexpected_keys)
    model._adjust_missing_and_unexpected_keys(info)
    needed = sorted(name for name in missing & info.missing_keys if _is_needed(model, name))
    if needed:
        raise BadRequest(
            f"model.path: {directory} does not fit the model of its config.json: it lacks "
            f"{_listed(needed)}"
            + (f", and has {_listed(unused)}, which the model does not have" if unused else "")
            + "; use the directory as it was published, or correct model_type and "
            "architectures in config.json"
        )
    return Pretrained(
        directory, loaded, stored, tuple(sorted(info.unexpected_keys)), tuple(sorted(missing))
    )


def hub_layout(model: Any, pretrained: Pretrained | None) -> HubLayout:
    """Return the tensors of `model` that have a different name or shape in a Hugging Face
    directory: the directory of `pretrained`, or one as `save_pretrained` would write it if
    `pretrained` is None.

    `model` is on the meta device and has no adapters.
    """
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    blocks = pretrained.blocks if pretrained is not None else {}
    if not shapes.keys() <= blocks.keys():
        blocks = {**_as_saved(model), **blocks}
    return {
        name: found for name, found in blocks.items() if not is_unchanged(name, shapes[name], found)
    }


def _as_saved(model: Any) -> HubLayout:
    with _silence():
        state = {
            name: symbolic_tensor(name, value.shape) for name, value in model.state_dict().items()
        }
        saved = revert_weight_conversion(copy.deepcopy(model), state)
    return _load(model, {name: tuple(value.shape) for name, value in saved.items()})[0]


def _load(
    model: Any, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, tuple[HubBlock, ...]], Any]:
    """Run transformers' loading code on a copy of `model`, with symbolic tensors.

    `shapes` has the shape of each tensor in a directory. Returns (the blocks that fill each tensor
    of `model`, transformers' report on missing, unused and wrong tensors).
    """
    filled = copy.deepcopy(model)
    with _silence():
        rules = LoadStateDictConfig(
            device_map={"": "meta"}, weight_mapping=get_model_conversion_mapping(filled)
        )
        given = {name: symbolic_tensor(name, shape) for name, shape in shapes.items()}
        info, _ = convert_and_load_state_dict_in_model(filled, given, rules, **_no_plan())
    names = {
        name: blocks_of(value)
        for name, value in filled.state_dict(keep_vars=True).items()
        if isinstance(value, TracedTensor)
    }
    return names, info


def _no_plan() -> dict[str, None]:
    """Return the keyword argument `tp_plan` = None, if this release of transformers requires it."""
    known = inspect.signature(convert_and_load_state_dict_in_model).parameters
    return {"tp_plan": None} if "tp_plan" in known else {}


def _refuse_shapes(model: Any, info: Any, stored: Mapping[str, HubTensor], directory: Path) -> None:
    """Raise an error if transformers could not compute a tensor of the model.

    The error is ShapeMismatch if a stored tensor has a wrong shape, else BadRequest. `info` is
    transformers' report.
    """
    shapes = {name: (found, wanted) for name, found, wanted in info.mismatched_keys}
    wrong = sorted({*shapes, *info.conversion_errors})
    expected = _as_saved(model) if wrong else {}
    for name in wrong:
        for block in expected.get(name, ()):
            for there in _spellings(model, block.name):
                if there in stored and stored[there].shape != block.shape:
                    raise ShapeMismatch(
                        f"model.path: {stored[there].path}: {there} has shape "
                        f"{list(stored[there].shape)}, but the model's config needs "
                        f"{list(block.shape)}"
                    )
    for name in wrong[:1]:
        if name not in shapes:
            raise BadRequest(
                f"model.path: {directory}: {name} cannot be computed from the stored tensors: "
                f"{_reason(info.conversion_errors[name])}"
            )
        found, wanted = map(list, shapes[name])
        raise ShapeMismatch(
            f"model.path: {directory}: {name} has shape {found}, but the model's config needs "
            f"{wanted}"
        )


def _refuse_untied(
    loaded: HubLayout, aliases: Mapping[str, str], stored: Mapping[str, HubTensor], directory: Path
) -> None:
    """Raise BadRequest if the config ties two weights, but the directory has different values for
    them.
    """
    for alias, name in aliases.items():
        one, other = loaded.get(alias, ()), loaded.get(name, ())
        if len(one) == len(other) == 1 and not same_values(stored, one[0], other[0]):
            raise BadRequest(
                f"model.path: {directory}: {one[0].name} and {other[0].name} differ, but "
                "config.json ties them: set tie_word_embeddings to false there"
            )


def _spellings(model: Any, name: str) -> tuple[str, ...]:
    """Return three forms of `name`: unchanged, without the prefix of the base model, and with this
    prefix.
    """
    prefix = f"{model.base_model_prefix}."
    return name, name.removeprefix(prefix), prefix + name


def _reason(text: str) -> str:
    """Return only the error message in `text`, which is transformers' record of an error in an
    operation.
    """
    return (text.rpartition("\nError")[0] or text).strip().splitlines()[-1]


def _is_needed(model: Any, name: str) -> bool:
    """Return whether every trained model must have the weight `name`.

    The weights of a head may be missing, because a head is often added to a trained base model.
    """
    base = getattr(model, "base_model_prefix", "")
    return not (base and hasattr(model, base)) or name.startswith(f"{base}.")


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


@contextmanager
def _silence() -> Iterator[None]:
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
