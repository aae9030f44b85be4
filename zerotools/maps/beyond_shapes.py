"""Facts of a model's computation that no shape shows, from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PAIRED = ("glm", "glm4")
_HALVED = ("glm", "glm4", "glm4_moe")
_UNNORMALISED = ("qwen2_moe", "qwen3_moe")


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of rotary positions; if kinds of attention differ, those of full
    attention."""
    found = config.get("rope_parameters") or config.get("rope_scaling")
    if isinstance(found, Mapping) and isinstance(found.get("full_attention"), Mapping):
        found = found["full_attention"]
    return found if isinstance(found, Mapping) else {}


def has_several_ropes(config: Mapping[str, Any]) -> bool:
    """Return whether layers with a sliding window have other rotary settings than those without."""
    found = config.get("rope_parameters")
    is_nested = isinstance(found, Mapping) and isinstance(found.get("full_attention"), Mapping)
    return is_nested or config.get("rope_local_base_freq") is not None


def rotary_share(config: Mapping[str, Any]) -> Any:
    """Return the part of a head that is rotated, from config.json; None: it is not set."""
    return config.get("partial_rotary_factor", rope_of(config).get("partial_rotary_factor"))


def usual_share(config: Mapping[str, Any]) -> float:
    """Return the part of a head that transformers rotates if config.json does not set it."""
    return 0.5 if config.get("model_type") in _HALVED else 1.0


def rotates_pairs(config: Mapping[str, Any]) -> bool:
    """Return whether adjacent elements of a head are rotated together, and not its two halves."""
    return config.get("model_type") in _PAIRED


def has_centred_norms(config: Mapping[str, Any]) -> bool:
    """Return whether norms multiply by 1 + their weight."""
    return str(config.get("model_type", "")).startswith("gemma")


def normalises_experts(config: Mapping[str, Any]) -> bool:
    """Return whether the weights of the chosen experts are normalised to sum to 1. For DeepSeek V2
    transformers never does this, whatever its `norm_topk_prob` (DeepseekV2TopkRouter)."""
    kind = config.get("model_type")
    said = config.get("norm_topk_prob")
    if not isinstance(said, bool):
        said = kind not in _UNNORMALISED
    return said and kind != "deepseek_v2"
