"""Whether an export has the names that its config.json needs, and what is said where not."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import zerotools
from tests.maps.test_hub_tensor_names import BODY, HEAD, LLAMA
from zerotools.core.errors import BadRequest
from zerotools.ops.weights import try_transformers_load
from zerotools.ops.weights.name_check import Fits, Misses, NotChecked, fit_to_config

WHOLE = {**BODY, **HEAD}
UNKNOWN = "transformers does not know it"
Shapes = Mapping[str, tuple[int, ...]]


@pytest.fixture(autouse=True)
def trial(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The answers of transformers, which does not know the model where the list is empty."""
    answers: list[dict[str, Any]] = []

    def run(command: Any, *, input: str, **_: Any) -> subprocess.CompletedProcess[str]:
        count = len(json.loads(input)["names"])
        said: dict[str, Any] = {"answers": answers * count, "count": count}
        out = json.dumps(said if answers else {"refused": UNKNOWN})
        return subprocess.CompletedProcess(command, 0, out, "")

    monkeypatch.setattr(try_transformers_load, "_NEEDED", ())
    monkeypatch.setattr(subprocess, "run", run)
    return answers


def answer(**faults: list[str]) -> dict[str, Any]:
    """The outcome of one load."""
    plain: dict[str, Any] = {
        "missing": [],
        "unexpected": [],
        "wrong": [],
        "ties": {},
        "renamed": {},
    }
    return plain | faults


def source(folder: Path, shapes: Shapes, **config: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**LLAMA, **config}))
    arrays = {name: np.full(shape, 1, "f4") for name, shape in shapes.items()}
    save_file(arrays, folder / "weights.safetensors")
    return folder / "weights.safetensors"


def exported(folder: Path, shapes: Shapes, **options: Any) -> tuple[set[str], tuple[str, ...]]:
    path = source(folder, shapes, **options.pop("config", {}))
    done = zerotools.consolidate(path, folder / "out-of-it", **options)
    return set(load_file(folder / "out-of-it" / "model.safetensors")), done.notes


def refusal(folder: Path, shapes: Shapes, **options: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        exported(folder, shapes, **options)
    assert not (folder / "out-of-it").exists()
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_names_that_fit_are_written_without_a_word(tmp_path: Path) -> None:
    names, notes = exported(tmp_path / "run", WHOLE)
    assert names == set(WHOLE)
    assert not any("the names" in note for note in notes)


def test_a_model_of_trl_with_a_value_head_lacks_only_an_option(tmp_path: Path) -> None:
    held = {f"pretrained_model.{name}": shape for name, shape in WHOLE.items()}
    held |= {"v_head.summary.weight": (1, 8), "v_head.summary.bias": (1,)}
    said = refusal(tmp_path / "a", held)
    assert "2 tensors unexpected (v_head.summary.bias, v_head.summary.weight)" in said
    assert "leave them out with --exclude 'v_head.summary.*'" in said
    names, notes = exported(tmp_path / "b", held, exclude="v_head.summary.*")
    assert names == set(WHOLE)
    assert any("removed pretrained_model." in note for note in notes)


MIXTRAL = {**LLAMA, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
MIXTRAL |= {"num_local_experts": 2, "num_key_value_heads": 2}
ATTENTION = {name: shape for name, shape in WHOLE.items() if ".mlp." not in name}
FUSED = {
    "model.layers.0.mlp.gate.weight": (2, 8),
    "model.layers.0.mlp.experts.gate_up_proj": (2, 24, 8),
    "model.layers.0.mlp.experts.down_proj": (2, 8, 12),
}
_SPARSE = "model.layers.0.block_sparse_moe"
APART = {
    f"{_SPARSE}.gate.weight": (2, 8),
    **{f"{_SPARSE}.experts.{n}.w{k}.weight": (12, 8) for n in (0, 1) for k in (1, 3)},
    **{f"{_SPARSE}.experts.{n}.w2.weight": (8, 12) for n in (0, 1)},
}


@pytest.mark.parametrize(("experts", "layout"), [(FUSED, "hf-fused"), (APART, None)])
def test_a_layout_that_only_transformers_5_reads_is_said(
    experts: Shapes, layout: str | None, folder: Path
) -> None:
    _, notes = exported(folder, {**ATTENTION, **experts}, config=MIXTRAL)
    said = [note for note in notes if "--map-to hf writes that of the Hub" in note]
    assert [f"the weights have the layout {layout}, " in note for note in said] == (
        [] if layout is None else [True]
    )


def test_names_of_a_model_with_images_in_memory_are_said(trial: list[dict[str, Any]]) -> None:
    trial.append(answer())
    names = {"model.language_model.layers.0.x": (1,), "model.vision_tower.x": (2,)}
    found = fit_to_config(names, {}, {"model_type": "llava"})
    assert isinstance(found, Fits)
    assert found.layout == "memory"
    on_hub = {"language_model.model.layers.0.x": (1,), "vision_tower.x": (2,)}
    found = fit_to_config(on_hub, {}, {"model_type": "llava"})
    assert isinstance(found, Fits)
    assert found.layout is None


def test_missing_weights_are_refused_with_counts_and_examples(folder: Path) -> None:
    lost = {name: s for name, s in WHOLE.items() if "self_attn" not in name}
    said = refusal(folder, lost)
    assert (
        f"does not fit the llama model of {folder / 'config.json'}: 4 tensors missing "
        "(model.layers.0.self_attn.q_proj.weight, model.layers.0.self_attn.k_proj.weight, "
        "model.layers.0.self_attn.v_proj.weight and 1 more); "
        "take a complete checkpoint, give the config.json of this model with --config-dir DIR"
    ) in said
    assert said.endswith("or write the names unchanged with --no-check-names")


def test_unexpected_tensors_are_refused_with_the_option_that_leaves_them_out(
    tmp_path: Path,
) -> None:
    more = {**WHOLE, "v_head.summary.weight": (1, 8), "v_head.summary.bias": (1,)}
    said = refusal(tmp_path / "a", more)
    assert "2 tensors unexpected (v_head.summary.bias, v_head.summary.weight)" in said
    assert "leave them out with --exclude 'v_head.summary.*'" in said
    names, _ = exported(tmp_path / "b", more, exclude="v_head.summary.*")
    assert names == set(WHOLE)
    names, _ = exported(tmp_path / "c", more, no_check_names=True)
    assert names == set(more)


@pytest.mark.parametrize("lost", [(), ("lm_head.weight",)])
def test_a_trained_classifier_is_not_advised_away(tmp_path: Path, lost: tuple[str, ...]) -> None:
    held = {name: shape for name, shape in WHOLE.items() if name not in lost}
    said = refusal(tmp_path / "a", {**held, "score.weight": (3, 8)})
    assert (
        "; give the config.json of this model with --config-dir DIR (architectures names a class "
        "without score.weight), or write the names unchanged"
    ) in said
    assert "--exclude" not in said


def test_the_advised_patterns_leave_out_nothing_that_is_needed(tmp_path: Path) -> None:
    more = {**WHOLE, "model.layers.0.extra": (3,), "model.stat": (2,)}
    said = refusal(tmp_path / "a", more)
    assert "leave them out with --exclude model.layers.0.extra --exclude model.stat, or" in said
    names, notes = exported(tmp_path / "b", more, exclude=["model.layers.0.extra", "model.stat"])
    assert names == set(WHOLE)
    assert not any("leave out" in note for note in notes)
    said = refusal(tmp_path / "c", {**WHOLE, "model.stat": (2,)})
    assert "leave it out with --exclude model.stat, or" in said


def test_another_shape_is_refused_with_both(folder: Path) -> None:
    said = refusal(folder, {**WHOLE, "model.norm.weight": (9,)})
    assert "1 tensor of another shape (model.norm.weight is [9], not [8])" in said
    assert "--config-dir DIR" in said


def test_what_is_left_out_on_purpose_is_not_missing(folder: Path) -> None:
    names, notes = exported(folder, WHOLE, include="model.layers.*")
    assert names == {name for name in WHOLE if ".layers." in name}
    assert (
        "--include/--exclude leave out 3 weights that the model of config.json needs "
        "(lm_head.weight, model.embed_tokens.weight, model.norm.weight)"
    ) in notes


@pytest.mark.parametrize("prefix", ["module.", "module._orig_mod.", "policy.", "model."])
def test_a_wrapper_comes_off_and_is_said(prefix: str, folder: Path) -> None:
    names, notes = exported(folder, {prefix + name: shape for name, shape in WHOLE.items()})
    assert names == set(WHOLE)
    assert [note for note in notes if note.startswith("removed ") and "from the names" in note]


def test_a_wrapper_stays_where_the_names_do_not_fit_without_it(folder: Path) -> None:
    wrapped = {f"module.{name}": shape for name, shape in WHOLE.items() if "norm" not in name}
    said = refusal(folder, wrapped)
    assert "3 tensors missing" in said
    assert "unexpected" not in said


def test_adapters_are_named_as_such(folder: Path) -> None:
    said = refusal(folder, {**WHOLE, "model.layers.0.self_attn.q_proj.lora_A.x": (2, 8)})
    command = "zerotools consolidate --base DIR"
    assert f"they belong to an adapter: merge it with {command}, or export it" in said


def test_another_layout_is_said_with_the_option_that_maps_it(tmp_path: Path) -> None:
    zerotools.consolidate(
        source(tmp_path / "hf", WHOLE), tmp_path / "meta", map_to="meta", dtype="fp32"
    )
    with pytest.raises(BadRequest, match=r"have the layout (meta|titan): pass --map-to hf"):
        zerotools.consolidate(tmp_path / "meta", tmp_path / "out")


@pytest.mark.parametrize("first", ["lm_head.weight", "model.embed_tokens.weight"])
def test_tied_weights_have_the_name_of_the_embedding(first: str, folder: Path) -> None:
    one = {name: shape for name, shape in WHOLE.items() if name == first or name not in
           ("lm_head.weight", "model.embed_tokens.weight")}  # fmt: skip
    names, _ = exported(folder, one, config={"tie_word_embeddings": True})
    assert names == set(BODY)
    done = folder / "out-of-it"
    zerotools.consolidate(folder / "weights.safetensors", folder.parent / "meta", map_to="meta")
    there = load_file(folder.parent / "meta" / "model.safetensors")
    assert "tok_embeddings.weight" in there
    assert len(there) == len(load_file(done / "model.safetensors"))


def test_convert_takes_wrappers_off_and_refuses_alike(tmp_path: Path) -> None:
    wrapped = {f"module.{name}": shape for name, shape in WHOLE.items()}
    path = source(tmp_path / "a", wrapped)
    done = zerotools.convert(path, tmp_path / "out", to="safetensors", config_dir=tmp_path / "a")
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == set(WHOLE)
    assert any("from the names" in note for note in done.notes)
    lost = source(tmp_path / "b", BODY)
    with pytest.raises(BadRequest, match=r"1 tensor missing \(lm_head\.weight\)"):
        zerotools.convert(lost, tmp_path / "no", to="safetensors")
    zerotools.convert(lost, tmp_path / "yes", to="safetensors", no_check_names=True)


def test_serve_refuses_alike(folder: Path) -> None:
    path = source(folder, BODY)
    with pytest.raises(BadRequest, match="1 tensor missing"), zerotools.serve(path):
        pass
    with zerotools.serve(path, no_check_names=True) as served:
        assert "model.safetensors" in served.files


def test_gather_names_what_a_model_lacks(tmp_path: Path) -> None:
    source(tmp_path / "node", BODY).rename(tmp_path / "node" / "model.safetensors")
    with pytest.raises(zerotools.BadFile):
        zerotools.gather([tmp_path / "node"], tmp_path / "out")
    done = zerotools.gather([tmp_path / "node"], tmp_path / "out", force=True)
    assert any("1 tensor missing (lm_head.weight)" in said for said in done.findings)
    found = zerotools.gather([tmp_path / "node"], tmp_path / "as-is", no_check_names=True)
    assert found.findings == ()


@pytest.mark.torch
def test_gather_names_what_a_model_of_torch_lacks(tmp_path: Path) -> None:
    import torch

    weights = load_file(source(tmp_path / "node", BODY))
    (tmp_path / "node" / "weights.safetensors").unlink()
    tensors = {name: torch.from_numpy(each) for name, each in weights.items()}
    torch.save(tensors, tmp_path / "node" / "pytorch_model.bin")
    done = zerotools.gather([tmp_path / "node"], tmp_path / "out", force=True)
    assert any("1 tensor missing (lm_head.weight)" in said for said in done.findings)
    named = tmp_path / "node" / "pytorch_model_fsdp.bin"  # which transformers does not load
    (tmp_path / "node" / "pytorch_model.bin").rename(named)
    assert zerotools.gather([tmp_path / "node"], tmp_path / "run").findings == ()


def test_gather_takes_a_lora_run_as_it_is(tmp_path: Path) -> None:
    layer = "model.layers.0.self_attn.q_proj"
    lora = {f"base_model.model.{name}": shape for name, shape in WHOLE.items()}
    lora[f"base_model.model.{layer}.base_layer.weight"] = lora.pop(
        f"base_model.model.{layer}.weight"
    )
    lora |= {f"base_model.model.{layer}.lora_{half}.default.weight": shape
             for half, shape in (("A", (2, 8)), ("B", (8, 2)))}  # fmt: skip
    source(tmp_path / "node", lora).rename(tmp_path / "node" / "model.safetensors")
    done = zerotools.gather([tmp_path / "node"], tmp_path / "out")
    assert done.findings == ()
    lost = {name: shape for name, shape in lora.items() if "lm_head" not in name}
    source(tmp_path / "other", lost).rename(tmp_path / "other" / "model.safetensors")
    done = zerotools.gather([tmp_path / "other"], tmp_path / "bad", force=True)
    assert any("1 tensor missing (lm_head.weight)" in said for said in done.findings)


class TestFit:
    def test_transformers_is_asked_before_a_refusal(self, trial: list[Any]) -> None:
        trial.append(answer())
        assert isinstance(fit_to_config(BODY, {}, LLAMA), Fits)

    def test_transformers_is_asked_of_other_models(self, trial: list[Any]) -> None:
        other = {"model_type": "falcon"}
        assert fit_to_config(BODY, {}, other) == NotChecked(UNKNOWN)
        trial.append(answer(missing=["a"], unexpected=["model.norm.weight"]))
        found = fit_to_config(BODY, {}, other)
        assert isinstance(found, Misses)
        assert found.faults.missing == ("a",)
        held = {name: shape for name, shape in BODY.items() if name != "model.norm.weight"}
        found = fit_to_config(held, {"model.norm.weight": (8,)}, other)
        assert isinstance(found, Misses)
        assert found.faults.unexpected == ()

    def test_code_of_its_own_is_not_judged(self, trial: list[Any]) -> None:
        trial.append(answer(missing=["a"]))
        found = fit_to_config(BODY, {}, {"model_type": "falcon", "auto_map": {"AutoModel": "x.Y"}})
        assert found == NotChecked("it names extra code (auto_map), which is not run")

    def test_a_config_without_a_type_is_not_judged(self) -> None:
        assert fit_to_config(BODY, {}, {}) == NotChecked("it has no model_type")

    def test_a_size_that_the_config_leaves_out_is_that_of_its_class(self) -> None:
        config = {key: value for key, value in LLAMA.items() if key != "intermediate_size"}
        found = fit_to_config(WHOLE, {}, config)
        assert isinstance(found, Misses)
        assert found.faults.wrong[0] == ("model.layers.0.mlp.gate_proj.weight", (12, 8), (11008, 8))

    def test_a_size_that_is_none_is_for_transformers(self) -> None:
        assert fit_to_config(WHOLE, {}, {**LLAMA, "hidden_size": "8"}) == NotChecked(UNKNOWN)


def test_a_config_that_transformers_cannot_build_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = json.dumps({"unbuildable": "TypeError: hidden_size is a str"})
    done = subprocess.CompletedProcess((), 0, said, "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    said = refusal(folder, {"x": (2,)}, config={"model_type": "mamba2"})
    assert "transformers cannot build the mamba2 model of" in said
    assert "(TypeError: hidden_size is a str); correct config.json" in said
    assert said.endswith("or write the names unchanged with --no-check-names")


def test_a_note_says_that_names_look_wrapped(folder: Path) -> None:
    wrapped = {"module._orig_mod.a.weight": (2,), "module._orig_mod.b.weight": (2,)}
    names, notes = exported(folder, wrapped, config={"model_type": "toy"})
    assert names == set(wrapped)
    assert [note for note in notes if note.endswith("--strip-prefix module._orig_mod. removes it")]


def test_a_config_that_is_no_object_is_said(folder: Path) -> None:
    path = source(folder, WHOLE)
    (folder / "config.json").write_text("[1, 2]")
    notes = zerotools.consolidate(path, folder / "out").notes
    assert [note for note in notes if "config.json is not a JSON object" in note]
