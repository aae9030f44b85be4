"""Write zerotools/io/huggingface/config_json.json, from the config classes of transformers."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, fields
from typing import Any

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from zerotools.io.huggingface.config_json import TABLE
from zerotools.maps.shipped_maps import shipped_maps
from zerotools.ops.estimate.model_families import FAMILIES

_NOT_OF_SHAPES = re.compile(
    r".*_token_id|use_cache|.*dropout|.*_pdrop|layerdrop|initializer_range|init_std|summary_.*"
    r"|output_.*|router_(aux_loss_coef|jitter_noise)|pretraining_tp|rope_parameters|is_decoder"
    r"|num_mtp_layers"
)
"""Keys that say nothing of a model's weights; layers of MTP are there where a config says so."""


def table() -> dict[str, Any]:
    """For each type of model whose shapes zerotools knows: the value that its class gives each key
    which a config.json leaves out, and keys that are other names of these."""
    types = {*FAMILIES, *(each for one in shipped_maps().values() for each in one.model_types)}
    return {name: _of_class(CONFIG_MAPPING[name]) for name in sorted(types)}


def _of_class(kind: Any) -> dict[str, Any]:
    common = {field.name for field in fields(PreTrainedConfig)}
    values = {}
    for field in fields(kind):
        if field.name in common or _NOT_OF_SHAPES.fullmatch(field.name):
            continue
        is_made = field.default_factory is not MISSING
        values[field.name] = field.default_factory() if is_made else field.default
    other = {
        name: target
        for name, target in sorted(kind.attribute_map.items())
        if name in values or target in values
    }
    return {"values": values, "names": other}


def text() -> str:
    """The file: a line for each type."""
    lines = (f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in table().items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    TABLE.write_text(text(), "utf-8")
