"""Find the sizes of a model, and settings in its config.json that no tensor shape shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from zerotools.core.errors import BadRequest
from zerotools.core.nearest_word import nearest_of
from zerotools.io.huggingface.config_json import full_config
from zerotools.maps.expressions import indices_of, named_value, size_of, whole_number_of
from zerotools.maps.map_file import FamilyMap

MULTIPLE = "vocab_multiple"
USUAL_MULTIPLE = 128
"""The default of Megatron's `--make-vocab-size-divisible-by`: the vocabulary is padded to a
multiple of it.
"""
MOST_TENSORS = 2_000_000


@dataclass(frozen=True)
class MapSizes:
    """The values that the expressions of a layout map can use for one model.

    Attributes:
        values: name -> value, for the keys of config.json, the map's sizes, and the arguments.
        counts: name of an index (such as the layer) -> the number of its values.
        shifts: name of an index -> the expressions with this index, such as `i+size`, that occur in
            tensor names.
    """

    values: Mapping[str, Any]
    counts: Mapping[str, int]
    shifts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    _numbers: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, family: FamilyMap, config: Mapping[str, Any], given: Mapping[str, Any]) -> MapSizes:
        """Return the values for one model from `config` (its config.json) and `given` (from
        `--map-arg`), which has precedence.

        Raises:
            BadRequest: a value is missing, or `given` has a value that the map does not use.
        """
        known = {*family.names_used(), MULTIPLE} if given else set()
        useless = next((name for name in given if name not in known), None)
        if useless is not None:
            raise BadRequest(
                f"the map {family.name} has no {useless}, which was passed with --map-arg; the "
                f"nearest is {nearest_of(useless, known)}"
            )
        names = {**full_config(config), MULTIPLE: USUAL_MULTIPLE, **given}
        for name, size in family.sizes.items():
            names[name] = given.get(name, named_value(size, names))
        multiple = names[MULTIPLE]
        if type(multiple) is not int or multiple < 1:
            raise BadRequest(f"{MULTIPLE} is {multiple}, but must be a number of rows, 1 or more")
        counts = {
            name: size_of(name if name in given else size, names)
            for name, size in family.indices.items()
        }
        shifts: dict[str, tuple[str, ...]] = {}
        for index, text in sorted(family.shifts()):
            shifts[index] = (*shifts.get(index, ()), text)
        return cls({**names, "is_multiple_given": MULTIPLE in given}, counts, shifts)

    def at(self, index: str, number: int) -> dict[str, int]:
        """Return {expression: number} for the name patterns of tensors, when `index` has the value
        `number`: this value itself, and the values of the expressions in `shifts`.

        Raises:
            BadRequest: the value of an expression is not a whole number.
        """
        known = self._numbers.get((index, number))
        if known is None:
            names = {**self.values, index: number}
            known = {text: whole_number_of(text, names) for text in self.shifts.get(index, ())}
            known[index] = number
            self._numbers[index, number] = known
        return known

    def indices_of(self, pattern: str) -> Iterator[dict[str, int]]:
        """Yield, for each tensor that a name pattern stands for, {expression: number}: the joined
        results of `at` for all indices in the pattern.

        Raises:
            BadRequest: there are more tensors than any model has.
        """
        names = indices_of(pattern)
        count = prod(self.counts[name] for name in names)
        if count > MOST_TENSORS:
            raise BadRequest(
                f"config.json gives {count} tensors {pattern}, more than any model has; correct "
                "config.json"
            )
        for values in product(*(range(self.counts[name]) for name in names)):
            found: dict[str, int] = {}
            for name, value in zip(names, values, strict=True):
                found |= self.at(name, value)
            yield found


_PAIRED = ("glm", "glm4")
_HALVED = ("glm", "glm4", "glm4_moe")
_UNNORMALISED = ("qwen2_moe", "qwen3_moe")


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the rotary position embedding in config.json. If kinds of attention
    have different settings, return the settings of full attention.
    """
    found = config.get("rope_parameters") or config.get("rope_scaling")
    if isinstance(found, Mapping) and isinstance(found.get("full_attention"), Mapping):
        found = found["full_attention"]
    return found if isinstance(found, Mapping) else {}


def has_several_ropes(config: Mapping[str, Any]) -> bool:
    """Return whether layers with a sliding window have different rotary settings from other
    layers.
    """
    found = config.get("rope_parameters")
    is_nested = isinstance(found, Mapping) and isinstance(found.get("full_attention"), Mapping)
    return is_nested or config.get("rope_local_base_freq") is not None


def rotary_share(config: Mapping[str, Any]) -> Any:
    """Return the fraction of a head that is rotated, or None if config.json does not set it."""
    return config.get("partial_rotary_factor", rope_of(config).get("partial_rotary_factor"))


def usual_share(config: Mapping[str, Any]) -> float:
    """Return the fraction of a head that transformers rotates if config.json does not set it."""
    return 0.5 if config.get("model_type") in _HALVED else 1.0


def rotates_pairs(config: Mapping[str, Any]) -> bool:
    """Return whether rotary position embedding rotates pairs of adjacent elements of a head. If
    False, a pair is an element of the first half with the one of the second half.
    """
    return config.get("model_type") in _PAIRED


def has_centred_norms(config: Mapping[str, Any]) -> bool:
    """Return whether the norms of this model multiply by 1 + their weight, instead of by their
    weight.
    """
    return str(config.get("model_type", "")).startswith("gemma")


def normalises_experts(config: Mapping[str, Any]) -> bool:
    """Return whether the weights of the chosen experts are normalised to a sum of 1.

    For DeepSeek V2 transformers never does this, whatever its `norm_topk_prob` is
    (DeepseekV2TopkRouter).
    """
    kind = config.get("model_type")
    said = config.get("norm_topk_prob")
    if not isinstance(said, bool):
        said = kind not in _UNNORMALISED
    return said and kind != "deepseek_v2"
