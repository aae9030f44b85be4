"""Gemma and DeepSeek as MaxText stores them, against its own formulas; and moments of weights that
it stores in another scale."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.maps import maxtext_formulas as formulas
from tests.maps.models import config as config_of
from tests.maps.models import made
from zerotools import formats
from zerotools.core import dtypes
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.maps.model_layout import layout_of_model
from zerotools.maps.shipped_maps import map_of_model
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.weights.convert_layout import MapRequest, mapped_checkpoint

Arrays = dict[str, np.ndarray]
Formula = Callable[[Arrays, dict[str, Any], bool], Arrays]
HEAD = {"query_pre_attn_scalar": 8}
LAYERS = "num_hidden_layers"
CASES: dict[str, tuple[Formula, str, dict[str, Any]]] = {
    "gemma": (formulas.gemma, "gemma", {LAYERS: 3}),
    "gemma2": (formulas.gemma2, "gemma2", {**HEAD, LAYERS: 4}),
    "gemma3-remainder": (formulas.gemma3, "gemma3", {LAYERS: 14}),
    "gemma3-blocks": (formulas.gemma3, "gemma3", {LAYERS: 12}),
    "gemma3-short": (formulas.gemma3, "gemma3", {LAYERS: 4}),
    "deepseek-v2": (formulas.deepseek, "deepseek-v2", {LAYERS: 4}),
    "deepseek-v3": (
        formulas.deepseek,
        "deepseek-v3",
        {LAYERS: 5, "first_k_dense_replace": 2, "num_nextn_predict_layers": 0},
    ),
    "deepseek-experts-alone": (formulas.deepseek, "deepseek-v2", {"first_k_dense_replace": 0}),
}


def model(folder: Path, kind: str, own: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    """Write a model of the Hub; return its config and its tensors."""
    config = {**config_of(kind), **own}
    hub = layout_of_model(map_of_model(config), "hf", config)
    drawn = np.random.default_rng(5)
    state = {
        name: drawn.normal(size=shape).astype("f4")
        for name, shape in hub.hub.items()
        if name not in hub.optional
    }
    saved(folder, config, state)
    return config, state


def saved(folder: Path, config: dict[str, Any], arrays: Arrays) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {name: np.ascontiguousarray(each) for name, each in arrays.items()},
        folder / "model.safetensors",
    )


def arrays_of(checkpoint: Checkpoint, role: str = "param") -> Arrays:
    types = dict.fromkeys(checkpoint.tensors, dtypes.FLOAT32)
    loaded = load_tensors(checkpoint, types)
    return {key.name: array for key, array in loaded.items() if key.role == role}


def assert_same(found: Arrays, wanted: Arrays) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("case", CASES)
def test_maxtext_has_what_its_formulas_give(tmp_path: Path, case: str) -> None:
    formula, kind, own = CASES[case]
    config, state = model(tmp_path / "hf", kind, own)
    source = formats.read(tmp_path / "hf")
    there = mapped_checkpoint(source, MapRequest(to="maxtext"))
    assert_same(arrays_of(there.checkpoint), formula(state, config, True))
    if kind == "gemma3":
        there = mapped_checkpoint(source, MapRequest(to="maxtext-apart"))
        assert_same(arrays_of(there.checkpoint), formula(state, config, False))


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_both_forms_are_detected_and_read(tmp_path: Path, case: str, scan: bool) -> None:
    formula, kind, own = CASES[case]
    config, state = model(tmp_path / "hf", kind, own)
    saved(tmp_path / "there", config, formula(state, config, scan))
    back = mapped_checkpoint(formats.read(tmp_path / "there"), MapRequest(to="hf"))
    assert_same(arrays_of(back.checkpoint), {k: again(k, v, config) for k, v in state.items()})


@pytest.mark.parametrize("scan", [True, False])
def test_a_bias_that_maxtext_does_not_train_is_read(tmp_path: Path, scan: bool) -> None:
    """MaxText 0.2.5 saves it in `nnx_aux`, where layers are stacked along dimension 0; four experts
    in four layers have the same shape along dimension 1."""
    own = {LAYERS: 5, "num_nextn_predict_layers": 0}
    config, state = model(tmp_path / "hf", "deepseek-v3", own)
    there = formulas.deepseek(state, config, scan)
    for name in [name for name in there if name.endswith("gate.bias")]:
        bias = there.pop(name)
        there[f"nnx_aux.model.{name}"] = bias.T if scan else bias
    saved(tmp_path / "there", config, there)
    back = mapped_checkpoint(formats.read(tmp_path / "there"), MapRequest(to="hf"))
    assert_same(arrays_of(back.checkpoint), state)


@pytest.mark.parametrize("layers", [4, 5])
def test_maxtext_0_2_5_stacks_biases_of_routers_along_dimension_0(
    tmp_path: Path, layers: int
) -> None:
    """Four layers with four experts have the same shape in both layouts."""
    own = {LAYERS: layers, "num_nextn_predict_layers": 0}
    config, state = model(tmp_path / "hf", "deepseek-v3", own)
    there = mapped_checkpoint(formats.read(tmp_path / "hf"), MapRequest(to="maxtext-0.2.5"))
    wanted = formulas.deepseek(state, config, True)
    bias = next(name for name in wanted if name.endswith("gate.bias"))
    wanted[bias] = np.ascontiguousarray(wanted[bias].T)
    assert_same(arrays_of(there.checkpoint), wanted)
    saved(tmp_path / "there", config, wanted)
    source = formats.read(tmp_path / "there")
    if layers == 5:
        with pytest.raises(BadRequest, match=r"fit the layouts maxtext and maxtext-0\.2\.5 of"):
            mapped_checkpoint(source, MapRequest(to="hf"))
    chosen = "maxtext-0.2.5" if layers == 5 else None
    back = mapped_checkpoint(source, MapRequest(to="hf", source=chosen))
    assert_same(arrays_of(back.checkpoint), state)


def again(name: str, value: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """A tensor of the Hub after the way there and back, by the hooks with `saving_to_hf`."""
    if not config["model_type"].startswith("gemma"):
        return value
    if "norm" in name:
        return formulas.minus_one(formulas.plus_one(value))
    is_2 = config["model_type"] != "gemma3_text"  # or Gemma 1
    if "embed_tokens" in name:
        root = config["hidden_size"] ** 0.5
        number = np.float32(root) if is_2 else formulas.bf16(root)
        return value * number / number
    if is_2 and "q_proj" in name:
        head = np.float32(config["head_dim"])
        return value * np.float32(1 / np.sqrt(head)) * np.float32(np.sqrt(head))
    return value


def test_the_vocabulary_of_gemma2_has_rows_of_zeros_in_maxtext(tmp_path: Path) -> None:
    """MaxText has 256128 rows for the 256000 of Gemma 2."""
    rows = MapRequest(to="maxtext", arguments={"maxtext_rows": 128})
    config, state = model(tmp_path / "hf", "gemma2", {**HEAD})
    there = mapped_checkpoint(formats.read(tmp_path / "hf"), rows)
    made = arrays_of(there.checkpoint)
    wanted = formulas.gemma2(state, config, True)
    embedding = wanted["token_embedder.embedding"]
    wanted["token_embedder.embedding"] = np.concatenate([embedding, np.zeros((28, 32), "f4")])
    assert_same(made, wanted)
    assert any("from 100 to 128 rows with zeros" in note for note in there.notes)
    saved(tmp_path / "there", config, made)
    rows = MapRequest(to="hf", arguments={"maxtext_rows": 128})
    back = mapped_checkpoint(formats.read(tmp_path / "there"), rows)
    assert arrays_of(back.checkpoint)["model.embed_tokens.weight"].shape == (100, 32)
    with pytest.raises(BadRequest, match=r"has 128 rows, but should have 100 "):
        mapped_checkpoint(formats.read(tmp_path / "there"), MapRequest(to="hf"))


@pytest.mark.torch
def test_maxtext_computes_of_gemma_1_what_transformers_computes(tmp_path: Path) -> None:
    """Embedding, queries and norms have the scales that MaxText needs for the same logits."""
    import torch

    live = made("gemma")
    with torch.no_grad():
        for name, value in live.state_dict().items():
            value.copy_((torch.rand(value.shape) - 0.5) * (1 if "norm" in name else 0.5))
    live.save_pretrained(tmp_path / "hf")
    there = mapped_checkpoint(formats.read(tmp_path / "hf"), MapRequest(to="maxtext"))
    tokens = [3, 14, 15, 92, 65, 35]
    with torch.no_grad():
        wanted = live(torch.tensor([tokens])).logits[0].numpy()
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    found = formulas.gemma_logits(arrays_of(there.checkpoint), tokens, config)
    assert np.abs(wanted).max() > 0.5
    assert np.abs(found - wanted).max() < 2e-5


@pytest.mark.parametrize("kind", ["gemma", "gemma2"])
def test_the_vocabulary_of_gemma_is_that_of_maxtext_by_itself(kind: str) -> None:
    config = {**config_of(kind), **HEAD, "vocab_size": 256000}
    made = layout_of_model(map_of_model(config), "maxtext", config)
    assert made.tensors["token_embedder.embedding"] == (256128, 32)


def test_a_gemma2_of_another_query_scale_is_refused() -> None:
    """Gemma 2 27B: MaxText divides its queries by the root of 128, the model by that of 144."""
    config = {**config_of("gemma2"), "query_pre_attn_scalar": 9}
    with pytest.raises(BadRequest, match=r"query_pre_attn_scalar == head, but head is 8"):
        layout_of_model(map_of_model(config), "maxtext", config)


def test_a_tied_head_has_no_tensor_in_maxtext(tmp_path: Path) -> None:
    """There it is transposed, so that it is no second name of the embedding."""
    model(tmp_path / "hf", "llama-tied", {})
    there = mapped_checkpoint(formats.read(tmp_path / "hf"), MapRequest(to="maxtext")).checkpoint
    assert "decoder.logits_dense.kernel" not in {key.name for key in there.tensors}
    assert not there.aliases


def test_layers_that_predict_further_tokens_are_not_lost(tmp_path: Path) -> None:
    model(tmp_path / "hf", "deepseek-v3", {"num_nextn_predict_layers": 1})
    source = formats.read(tmp_path / "hf")
    with pytest.raises(
        BadRequest, match=r"no rule uses model\.layers\.2\.\S+, so it would be lost"
    ):
        mapped_checkpoint(source, MapRequest(to="maxtext"))


def with_state(source: Checkpoint, *roles: str) -> Checkpoint:
    """Each weight also as optimizer state of these roles, with the weight's elements."""
    state = {Key(key.name, role): value for key, value in source.tensors.items() for role in roles}
    source.tensors.update(state)  # type: ignore[attr-defined]
    return source


@pytest.mark.parametrize("kind", ["gemma", "gemma2", "gemma3"])
def test_moments_follow_their_weights(tmp_path: Path, kind: str) -> None:
    """The gradient of w' = c w is g / c: exp_avg is divided by c, and exp_avg_sq by c * c."""
    config, state = model(tmp_path / "hf", kind, {**HEAD})
    roles = ("exp_avg", "exp_avg_sq", "momentum_buffer")
    source = with_state(formats.read(tmp_path / "hf"), *roles)
    there = mapped_checkpoint(source, MapRequest(to="maxtext")).checkpoint
    first, second = arrays_of(there, "exp_avg"), arrays_of(there, "exp_avg_sq")
    is_2 = kind != "gemma3"  # or Gemma 1
    formula = getattr(formulas, kind)
    wanted = formula(state, config, True, scaled=False)
    squares = dict(wanted)
    root = 32**0.5 if is_2 else float(formulas.bf16(32**0.5))
    wanted["token_embedder.embedding"] /= np.float32(root)
    squares["token_embedder.embedding"] = state["model.embed_tokens.weight"] / np.float32(
        32 if is_2 else root**2
    )
    for name in [name for name in wanted if is_2 and "query.kernel" in name]:
        wanted[name] = wanted[name] * np.float32(8**0.5)
        squares[name] = squares[name] * np.float32(8)
    assert_same(first, wanted)
    assert_same(second, squares)
    assert_same(arrays_of(there, "momentum_buffer"), wanted)


def test_other_state_of_such_weights_is_refused(tmp_path: Path) -> None:
    model(tmp_path / "hf", "gemma2", {**HEAD})
    source = with_state(formats.read(tmp_path / "hf"), "acc_delta")
    with pytest.raises(Unsupported, match=r"\(acc_delta\) cannot be converted together with"):
        mapped_checkpoint(source, MapRequest(to="maxtext"))
