"""Find the names and shapes of a model's tensors on the Hub, for known model types.

Families with several layouts have a map (`families`); other families have a file with only the
Hub's names (`names`). For other model types, and for architectures with other heads, only
transformers knows the names.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from zerotools.maps.detect_layout import match_layout
from zerotools.maps.expression_views import Shape
from zerotools.maps.map_file import HUB, FamilyMap, read_map

FUSED = "hf-fused"
"""The name of the layout that a model with experts has in the memory of transformers 5.
transformers 5 also loads files in this layout.
"""
_FOLDERS = ("families", "names")
_WHOLE = ("ForCausalLM", "LMHeadModel")
_SCORED = "ForSequenceClassification"
_SCORE = "score.weight"
_HIDDEN = "hidden"
"""The name that maps use for the output size of one expert."""
_LABELS = 2
"""The default number of labels of transformers' classifiers."""
_OLD_BUFFERS = ("rotary_emb.inv_freq", "attn.masked_bias", "attn.bias", "attention.masked_bias",
                "attention.bias")  # fmt: skip
"""Buffers of masks and positions that checkpoints of old releases contain."""


@dataclass(frozen=True)
class NameFaults:
    """The differences between the tensors of a checkpoint and the tensors that the model needs.

    `missing` are the names, with shapes, that the model needs and the checkpoint lacks.
    `unexpected` are the names that the model does not have. `wrong` are tensors with a wrong shape:
    name, shape in the checkpoint, shape in the model. `layout` is the layout with which the
    checkpoint was compared, if it is not that of the Hub.
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    wrong: tuple[tuple[str, Shape, Shape], ...] = ()
    layout: str | None = field(default=None, compare=False)

    @property
    def count(self) -> int:
        """The number of differences."""
        return len(self.missing) + len(self.unexpected) + len(self.wrong)


@dataclass(frozen=True)
class ModelNames:
    """The tensor names of one model.

    `ties` is name that a checkpoint may lack -> name of the tensor that the model uses instead.
    """

    family: FamilyMap
    config: Mapping[str, Any]
    ties: Mapping[str, str] = field(default_factory=dict)
    _head: str = ""
    _is_base: bool = False
    _labels: int | None = None

    def faults_of(self, held: Mapping[str, Shape]) -> NameFaults:
        """Return the differences between the tensors `held` and the model. If the model has several
        sets of names, the set that matches best is used.

        The names in `held` may lack the first part of the model's names. For example, a checkpoint
        of a model without its head has `layers.0...` instead of `model.layers.0...`.

        Raises:
            BadRequest: config.json lacks a size.
        """
        full, own = self._in_full(held)
        on_hub = self._faults(HUB, full, own)
        if FUSED not in self.family.layouts:
            return on_hub
        fused = replace(self._faults(FUSED, full, own), layout=FUSED)
        return min(on_hub, fused, key=lambda each: each.count)

    def _in_full(self, held: Mapping[str, Shape]) -> tuple[dict[str, Shape], dict[str, str]]:
        """Return the tensors `held` under their full names in the whole model, and a map from full
        name to the name in `held`.
        """
        prefix = self._prefix
        fused = self.family.layouts.get(FUSED)
        known = [*self.family.hub, *(fused.tensors if fused is not None else ())]
        starts = {name.partition(".")[0] for name in known} - {prefix}
        full: dict[str, Shape] = {}
        own: dict[str, str] = {}
        for name, shape in held.items():
            first = name.partition(".")[0]
            is_whole = first == prefix or first in starts or name == _SCORE
            new = name if is_whole else f"{prefix}.{name}"
            full[new], own[new] = shape, name
        return full, own

    @property
    def _prefix(self) -> str:
        return next(iter(self.family.hub)).partition(".")[0]

    def _faults(self, layout: str, full: Mapping[str, Shape], own: Mapping[str, str]) -> NameFaults:
        held = {name: shape for name, shape in full.items() if not self._is_beside(name)}
        stored = match_layout(self.family, layout, self.config, {}, held).stored
        missing = [name for name in stored.missing if not self._lacks(name)]
        unexpected = [name for name in stored.unknown if not name.endswith(_OLD_BUFFERS)]
        wrong = [(own[name], there, needed) for name, there, needed in stored.wrong]
        if self._labels is not None:
            rows = (self._labels, self.config.get("hidden_size"))
            if _SCORE not in full:
                missing.append(_SCORE)
            elif full[_SCORE] != rows:
                wrong.append((_SCORE, full[_SCORE], rows))  # type: ignore[arg-type]
            unexpected += [name for name in (self._head,) if name in full]
        return NameFaults(tuple(missing), tuple(own[name] for name in unexpected), tuple(wrong))

    def _is_beside(self, name: str) -> bool:
        return self._labels is not None and name in (_SCORE, self._head)

    def _lacks(self, name: str) -> bool:
        return name == self._head and (self._is_base or self._labels is not None)


def names_of_model(config: Mapping[str, Any], *, is_tied: bool) -> ModelNames | None:
    """Return the tensor names of the model that config.json describes, or None if some names are
    unknown.

    `is_tied` is True if the output layer uses the embedding's tensor.
    """
    kind = config.get("model_type")
    family = _family_of(kind) if isinstance(kind, str) else None
    if family is None or isinstance(config.get("text_config"), Mapping):
        return None
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    is_whole, is_scored = not name or name.endswith(_WHOLE), name.endswith(_SCORED)
    is_base = name.endswith("Model") and not name.endswith((*_WHOLE, "HeadsModel"))
    if not (is_whole or is_scored or is_base):
        return None
    ties = tied_names(family)
    return ModelNames(
        family,
        {**config, "tie_word_embeddings": is_tied},
        ties if is_tied else {},
        next(iter(ties), ""),
        is_base,
        _labels_of(config) if is_scored else None,
    )


def has_transposed_experts(config: Mapping[str, Any]) -> bool | None:
    """Return whether transformers stores the model's experts as (experts, in, out) instead of
    (experts, out, in). Return None if this is unknown."""
    kind = config.get("model_type")
    family = _family_of(kind) if isinstance(kind, str) else None
    if family is None:
        return None
    if FUSED in family.layouts:
        return False
    down = (t.shape for name, t in family.hub.items() if name.endswith(".experts.down_proj"))
    return next((shape[-1] == _HIDDEN for shape in down), None)


def _labels_of(config: Mapping[str, Any]) -> int:
    labels, number = config.get("id2label"), config.get("num_labels")
    if isinstance(labels, Mapping):
        return len(labels)
    return number if isinstance(number, int) else _LABELS


def tied_names(family: FamilyMap) -> dict[str, str]:
    """Return {tensor name that a checkpoint may leave out: name of the embedding}.

    The model uses the embedding instead of the absent tensor, which has the same shape.
    """
    return {
        name: next(each for each, tensor in family.hub.items() if tensor.shape == shape)
        for name in family.optional
        if "{" not in name
        for shape in (family.hub[name].shape,)
    }


@cache
def _family_of(kind: str) -> FamilyMap | None:
    found = _files_by_type().get(kind)
    return None if found is None else read_map(found.read_bytes(), found.name)


@cache
def _files_by_type() -> Mapping[str, Traversable]:
    return {
        kind: each
        for folder in _FOLDERS
        for each in sorted((files(__package__) / folder).iterdir(), key=lambda file: file.name)
        if each.name.endswith(".toml")
        for kind in tomllib.loads(each.read_text("utf-8")).get("model_types", [])
    }
