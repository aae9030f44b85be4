"""First values by a model's own rule, where it is not that of the block alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.architectures.configs import tiny_config

pytestmark = pytest.mark.torch


def drawn(name: str) -> Any:
    from zerotoolsd.trainer.model.meta_model import make_meta_model

    return make_meta_model(tiny_config(name))


def values(meta_model: Any, names: set[str], loaded: set[str]) -> dict[str, Any]:
    """What `initialise` gives the parameters `names`, and all buffers."""
    import torch

    from zerotoolsd.trainer.allocate_tensors import make_memory
    from zerotoolsd.trainer.model.initialise_from_seed import initialise_weights

    def empty(tensor: Any) -> Any:
        return torch.full(tensor.shape, 7, dtype=tensor.dtype)

    model = meta_model.model
    parameters = {n: empty(p) for n, p in model.named_parameters() if n in names}
    buffers = {name: empty(buffer) for name, buffer in model.named_buffers()}
    host = make_memory(torch.device("cpu")).host
    initialise_weights(parameters, buffers, meta_model, 0, host, loaded)
    return {**parameters, **buffers}


def test_the_rules_of_modules_around_a_block_are_asked_too() -> None:
    """Falcon-H1 sets a buffer of its mixers in the rule of the model around them."""
    import torch
    from transformers import AutoModelForCausalLM

    meta_model = drawn("falcon_h1")
    found = values(meta_model, {name for name, _ in meta_model.model.named_parameters()}, set())
    wanted = dict(AutoModelForCausalLM.from_config(meta_model.config).named_buffers())
    multipliers = [name for name in wanted if name.endswith("mup_vector")]
    assert len(multipliers) == 2
    for name in multipliers:
        assert torch.equal(found[name], wanted[name])


def test_a_model_inside_a_model_has_its_own_rule() -> None:
    """The rule of Gemma 3n's inner model reads an attribute that the outer model lacks, and a model
    of images has its own range of first values."""
    from transformers import AutoConfig

    from zerotoolsd.trainer.model.meta_model import make_meta_model

    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "head_dim": 8}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    own = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 32, "laurel_rank": 4}
    layers = {"layer_types": ["full_attention"] * 2, "activation_sparsity_pattern": [0.0] * 2}
    gemma = {**sizes, **heads, **own, **layers, "num_kv_shared_layers": 0}
    meta_model = make_meta_model(AutoConfig.for_model("gemma3n_text", **gemma))
    found = values(meta_model, {name for name, _ in meta_model.model.named_parameters()}, set())
    assert float(found["model.per_layer_projection_scale"]) == 16**-0.5

    seen = {"image_size": 8, "patch_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
    seen |= {"hidden_size": 16, "intermediate_size": 16, "initializer_range": 0.5}
    text = {**sizes, **heads, "initializer_range": 0.001}
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=seen)
    meta_model = make_meta_model(config)
    found = values(meta_model, {name for name, _ in meta_model.model.named_parameters()}, set())
    [images] = [
        v for n, v in found.items() if n.endswith("vision_tower.encoder.layers.0.mlp.fc1.weight")
    ]
    [words] = [v for n, v in found.items() if n.endswith("layers.0.mlp.up_proj.weight")]
    assert float(words.std()) < 0.01 < float(images.std())


def test_values_that_a_directory_has_need_no_rule() -> None:
    """Apertus has weights and buffers that only its constructor sets."""
    from zerotools.core.errors import Unsupported
    from zerotoolsd.trainer.model.fill_shards import persistent_buffers

    meta_model = drawn("apertus")
    kept = set(persistent_buffers(meta_model.model))
    assert values(meta_model, set(), kept).keys() >= kept
    with pytest.raises(Unsupported, match=r"sets no value for model.layers.0.mlp.act_fn.beta on"):
        values(meta_model, set(), set())
    with pytest.raises(Unsupported, match=r"sets no value for model.layers.0.mlp.act_fn.alpha_p"):
        values(meta_model, {"model.layers.0.mlp.act_fn.alpha_p"}, kept)


def test_numbers_that_json_lacks_are_read_from_a_config(tmp_path: Path) -> None:
    from zerotools.jobs.jobfile_tables.model import ModelSpec
    from zerotoolsd.trainer.model.meta_model import read_config

    config = tiny_config("mamba2")
    config.save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    assert '"__float__": "Infinity"' in text
    assert read_config(ModelSpec(path=str(tmp_path))).time_step_limit[1] == float("inf")
