"""Directories of the Hub give a model what `from_pretrained` gives it, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA

pytestmark = pytest.mark.torch

MIXTRAL = {**TINY_LLAMA, "model_type": "mixtral", "num_local_experts": 3}
BERT = {
    **{key: TINY_LLAMA[key] for key in TINY_LLAMA if key != "num_key_value_heads"},
    "model_type": "bert",
    "is_decoder": True,
}
TIED = {**TINY_LLAMA, "tie_word_embeddings": True}
Change = Callable[[dict[str, Any]], dict[str, Any]]


def unprefixed(state: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("transformer."): value for name, value in state.items()}


def headless(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if not name.startswith("lm_head")}


def under_the_head(state: dict[str, Any]) -> dict[str, Any]:
    """Tied weights under the name of the head alone."""
    embedding = state["model.embed_tokens.weight"]
    rest = {name: value for name, value in state.items() if "embed_tokens" not in name}
    return {**rest, "lm_head.weight": embedding.clone()}


def under_both(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "lm_head.weight": state["model.embed_tokens.weight"].clone()}


def with_more(state: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {**state, "model.rotary_emb.inv_freq": torch.ones(4), "score.weight": torch.ones(2, 32)}


def of_old(state: dict[str, Any]) -> dict[str, Any]:
    """As BERT was published."""
    names = {".weight": ".gamma", ".bias": ".beta"}
    changed = {}
    for name, value in state.items():
        stem, _, kind = name.rpartition(".")
        changed[f"{stem}{names[f'.{kind}']}" if stem.endswith("LayerNorm") else name] = value
    return changed


def same(state: dict[str, Any]) -> dict[str, Any]:
    return state


LOADED: dict[str, tuple[dict[str, Any], Change, str]] = {
    "as saved": (TINY_LLAMA, same, ""),
    "fused experts": (MIXTRAL, same, ""),
    "without prefix": (TINY_GPT2, unprefixed, ""),
    "tied": (TIED, same, ""),
    "tied, under the other name": (TIED, under_the_head, ""),
    "tied, under both": (TIED, under_both, ""),
    "names of old": (BERT, of_old, ""),
    "no head": (TINY_LLAMA, headless, "lacks lm_head.weight, which get"),
    "more tensors": (TINY_LLAMA, with_more, "the model does not use score.weight"),
}


def saved(directory: Path, config: dict[str, Any], change: Change = same) -> Path:
    """A directory that transformers wrote, its tensors changed."""
    import torch
    from safetensors.torch import load_file, save_file

    from zerotools.jobs.jobfile_tables.model import ModelSpec
    from zerotoolsd.trainer.model.meta_model import read_config

    torch.manual_seed(0)
    model = language_model(read_config(ModelSpec(config=config)))
    model.save_pretrained(directory)
    path = directory / "model.safetensors"
    state = change(load_file(path))
    save_file({n: v.contiguous() for n, v in state.items()}, path, metadata={"format": "pt"})
    return directory


def language_model(config: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(config)


def drawn(directory: Path) -> Any:
    from zerotools.jobs.jobfile_tables.model import ModelSpec
    from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config

    return make_meta_model(read_config(ModelSpec(path=str(directory))))


@pytest.mark.parametrize("name", LOADED)
def test_weights_are_those_of_from_pretrained(tmp_path: Path, name: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from zerotoolsd.trainer.model.fill_shards import is_from_seed, load_weights
    from zerotoolsd.trainer.model.match_pretrained import match_directory

    config, change, said = LOADED[name]
    directory = saved(tmp_path / "model", config, change)
    meta_model = drawn(directory)
    pretrained = match_directory(meta_model.plain, meta_model.aliases, directory)
    assert [note for note in pretrained.notes() if said not in note or not said] == []
    assert len(list(pretrained.notes())) == bool(said)
    targets = {
        name: torch.full(value.shape, torch.nan)
        for name, value in meta_model.model.named_parameters()
    }
    load_weights(targets, meta_model.aliases, pretrained)
    wanted = dict(AutoModelForCausalLM.from_pretrained(directory).named_parameters())
    for alias, tied in meta_model.aliases.items():
        # transformers 5.1 ties no weights that are in the file under both names.
        assert torch.equal(wanted.pop(alias, wanted[tied]), wanted[tied])
    assert targets.keys() == wanted.keys()
    for name, value in targets.items():
        if is_from_seed(name, pretrained):
            assert value.isnan().all()
        else:
            assert torch.equal(value, wanted[name]), name


def without_layer(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if ".layers.1." not in name}


def other_names(state: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("model.layers", "blocks"): value for name, value in state.items()}


def cut(state: dict[str, Any]) -> dict[str, Any]:
    norm = "model.norm.weight"
    return {**state, norm: state[norm][:8].clone()}


def wider_experts(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.repeat(1, 2) if name.endswith((".w1.weight", ".w3.weight")) else value
        for name, value in state.items()
    }


def uneven_experts(state: dict[str, Any]) -> dict[str, Any]:
    name = "model.layers.0.block_sparse_moe.experts.1.w1.weight"
    return {**state, name: state[name][:5].clone()}


def without_expert(state: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in state.items()
        if "0.block_sparse_moe.experts.1.w3" not in name
    }


def untied(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "lm_head.weight": state["model.embed_tokens.weight"] + 1}


def eight_bits(state: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {**state, "model.norm.weight": state["model.norm.weight"].to(torch.float8_e4m3fn)}


REFUSED: dict[str, tuple[dict[str, Any], Change, str]] = {
    "a layer": (
        TINY_LLAMA,
        without_layer,
        "does not fit the model of its config.json: it lacks model.layers.1.input_layernorm.weight"
        ", model.layers.1.mlp.down_proj.weight, .* and 5 more; use",
    ),
    "other names": (
        TINY_LLAMA,
        other_names,
        "it lacks model.layers.0.input_layernorm.weight, .* and 14 more, and has "
        "blocks.0.input_layernorm.weight, .* and 14 more, which the model does not have; use",
    ),
    "shape": (
        TINY_LLAMA,
        cut,
        r"model.safetensors: model.norm.weight has shape \[8\], but the model's config needs "
        r"\[32\]",
    ),
    "shape of experts": (
        MIXTRAL,
        wider_experts,
        r"layers.0.block_sparse_moe.experts.0.w1.weight has shape \[64, 64\], but the "
        r"model's config needs \[64, 32\]",
    ),
    "experts of two shapes": (
        MIXTRAL,
        uneven_experts,
        r"layers.0.block_sparse_moe.experts.1.w1.weight has shape \[5, 32\], but the "
        r"model's config needs \[64, 32\]",
    ),
    "an expert": (
        MIXTRAL,
        without_expert,
        r"model: model.layers.0.mlp.experts.gate_up_proj cannot be computed from the stored "
        r"tensors: tensors of shapes "
        r"\[3, 64, 32\] and \[2, 64, 32\] cannot be concatenated",
    ),
    "two tensors of a tied one": (
        TIED,
        untied,
        "lm_head.weight and model.embed_tokens.weight differ, but config.json ties them: set "
        "tie_word_embeddings to false there",
    ),
    "eight bits": (
        TINY_LLAMA,
        eight_bits,
        "model.norm.weight is float8_e4m3fn: quantised weights cannot be trained",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    from zerotools.core.errors import BadRequest
    from zerotoolsd.trainer.model.match_pretrained import match_directory

    config, change, why = REFUSED[name]
    directory = saved(tmp_path / "model", config, change)
    meta_model = drawn(directory)
    with pytest.raises(BadRequest, match=why) as caught:
        match_directory(meta_model.plain, meta_model.aliases, directory)
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_of_a_config_is_exported_as_save_pretrained_names_it(tmp_path: Path) -> None:
    from zerotoolsd.trainer.model.match_pretrained import hub_layout, match_directory

    meta_model = drawn(saved(tmp_path / "model", MIXTRAL))
    pretrained = match_directory(meta_model.plain, meta_model.aliases, tmp_path / "model")
    layout = hub_layout(meta_model.plain, None)
    assert layout == hub_layout(meta_model.plain, pretrained)
    assert [block.name for block in layout["model.layers.1.mlp.experts.down_proj"]] == [
        f"model.layers.1.block_sparse_moe.experts.{expert}.w2.weight" for expert in range(3)
    ]
    assert "model.norm.weight" not in layout


def test_adapters_do_not_hide_the_names(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from zerotools.jobs.jobfile_tables.lora import LoraSpec
    from zerotools.jobs.jobfile_tables.model import ModelSpec
    from zerotoolsd.trainer.model.match_pretrained import match_directory
    from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config

    directory = saved(tmp_path / "model", TINY_GPT2, unprefixed)
    config = read_config(ModelSpec(path=str(directory)))
    meta_model = make_meta_model(config, LoraSpec(rank=2))
    pretrained = match_directory(meta_model.plain, meta_model.aliases, directory)
    assert not list(pretrained.notes())
    assert (
        pretrained.blocks["transformer.h.0.attn.c_attn.weight"][0].name == "h.0.attn.c_attn.weight"
    )
