"""`consolidate --adapter-only`: what PEFT saves and loads, out of what a run saves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.ops.exports import noise
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.io.numeric.dtype_casts import Array
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.public import diff

Q, OTHER = "base_model.model.layers.0.q", "base_model.model.layers.0.o"
IGNORED = "ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 8, "target_modules": ["q"], "bias": "none"}


def half(stem: str, rank: int = 2, adapter: str = "default") -> dict[str, Array]:
    return {
        f"{stem}.lora_A.{adapter}.weight": noise(rank, 6, seed=1),
        f"{stem}.lora_B.{adapter}.weight": noise(4, rank, seed=2),
    }


def saved(directory: Path, tensors: dict[str, Array], config: dict[str, Any] | None) -> Path:
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    if config is not None:
        (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def exported(source: Path, out: Path, **options: Any) -> dict[str, Array]:
    conversion = prepare_export(source, out, Options(adapter_only=True, **options))
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    record = ".zerotools-output.json"
    names = {path.name for path in out.iterdir()}
    assert names == {"adapter_model.safetensors", "adapter_config.json", record}
    return load_file(out / "adapter_model.safetensors")


def base(stem: str) -> dict[str, Array]:
    return {f"{stem}.base_layer.weight": noise(4, 6)}


def test_names_and_config_are_those_of_peft(tmp_path: Path) -> None:
    wrapped = {
        name.replace(".layers.", ".layers._fsdp_wrapped_module."): array
        for name, array in half(Q).items()
    }
    tensors = {f"module.{name}": array for name, array in {**base(Q), **wrapped}.items()}
    source = saved(tmp_path / "in", tensors, CONFIG)
    found = exported(source, tmp_path / "out")
    assert set(found) == {f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"}
    np.testing.assert_array_equal(found[f"{Q}.lora_B.weight"], noise(4, 2, seed=2))
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config == {**CONFIG, "inference_mode": True}


def test_an_injected_adapter_gets_the_prefix_of_peft(tmp_path: Path) -> None:
    tensors = {name.removeprefix("base_model.model."): a for name, a in half(Q).items()}
    saved(tmp_path / "elsewhere", half(Q), CONFIG)
    source = saved(tmp_path / "in", tensors, None)
    with pytest.raises(BadRequest, match=r"the scale \(lora_alpha\) of its adapter: pass --adap"):
        exported(source, tmp_path / "out")
    found = exported(source, tmp_path / "out", adapter_config=tmp_path / "elsewhere")
    assert set(found) == {f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"}


def test_what_peft_saved_beside_an_adapter_stays_with_it(tmp_path: Path) -> None:
    halves = {name.replace(".default", ""): array for name, array in half(Q).items()}
    beside = {
        "base_model.model.head.weight": noise(3, 4, seed=3),  # one of modules_to_save
        "base_model.model.embed_tokens.weight": noise(7, 6, seed=4),
        f"{Q}.base_layer.bias": noise(4, seed=5),
    }
    config = {**CONFIG, "modules_to_save": ["head"], "bias": "lora_only"}
    source = saved(tmp_path / "in", {**halves, **beside}, config)
    found = exported(source, tmp_path / "out")
    assert found.keys() == {**halves, **beside}.keys()
    for name, array in beside.items():
        np.testing.assert_array_equal(found[name], array)


def test_one_adapter_of_several(tmp_path: Path) -> None:
    tensors = {**half(Q, adapter="one"), **half(Q, adapter="two")}
    source = saved(tmp_path / "in", tensors, CONFIG)
    with pytest.raises(
        BadRequest, match=r"2 adapters: one, two; choose one of them with --adapter-"
    ):
        exported(source, tmp_path / "out")
    with pytest.raises(BadRequest, match=r"the scale \(lora_alpha\) of its adapter two"):
        exported(source, tmp_path / "out", adapter_name="two")  # whose is the config beside it?
    (source / "two").mkdir()
    (source / "two" / "adapter_config.json").write_text(json.dumps({**CONFIG, "lora_alpha": 3}))
    assert len(exported(source, tmp_path / "out", adapter_name="two")) == 2
    assert config_in(tmp_path / "out")["lora_alpha"] == 3
    (source / "adapter_config.json").unlink()
    elsewhere = saved(tmp_path / "elsewhere", {}, CONFIG)
    (elsewhere / "two").mkdir()
    (elsewhere / "two" / "adapter_config.json").write_text(json.dumps({**CONFIG, "lora_alpha": 5}))
    exported(source, tmp_path / "again", adapter_name="two", adapter_config=elsewhere)
    assert config_in(tmp_path / "again")["lora_alpha"] == 5


def config_in(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "adapter_config.json").read_text())
    return found


def test_the_default_of_several_is_exported_and_the_others_are_named(tmp_path: Path) -> None:
    source = saved(tmp_path / "in", {**half(Q), **half(Q, adapter="two")}, CONFIG)
    conversion = prepare_export(source, tmp_path / "out", Options(adapter_only=True))
    assert (
        "this exports the adapter default, one of 2; --adapter-name exports another one: two"
        in conversion.notes
    )


def test_an_adapter_that_changed_its_base_is_no_sum(tmp_path: Path) -> None:
    whole = saved(tmp_path / "base", {"layers.0.q.weight": noise(4, 6)}, None)
    source = saved(tmp_path / "in", half(Q), with_(init_lora_weights="pissa_niter_4"))
    exported(source, tmp_path / "out")
    with pytest.raises(Unsupported, match="init_lora_weights = 'pissa_niter_4', which changed the"):
        diff(whole, whole, adapter=tmp_path / "out")


def with_(**keys: Any) -> dict[str, Any]:
    return {**CONFIG, **keys}


REFUSED: dict[str, tuple[dict[str, Array], dict[str, Any], type[Exception], str]] = {
    "no adapter": (
        {f"{Q}.weight": noise(4, 6)},
        CONFIG,
        BadRequest,
        "has no tensor of a LoRA adapter",
    ),
    "IA3": ({f"{Q}.ia3_l.default": noise(4)}, CONFIG, Unsupported, "not part of a LoRA"),
    "AdaLoRA": (
        {**half(Q), f"{Q}.lora_E.default": noise(2, 1)},
        CONFIG,
        Unsupported,
        "q.lora_E.default, which is not part of a LoRA",
    ),
    "config of IA3": (half(Q), with_(peft_type="IA3"), Unsupported, "is of a IA3 adapter"),
    "half": (
        {f"{Q}.lora_A.default.weight": noise(2, 6)},
        CONFIG,
        BadFile,
        r"the adapter of layers.0.q has no lora_B",
    ),
    "rank": (half(Q), with_(r=8), BadRequest, "has rank 2, but adapter_config.json has 8"),
    "pattern": (
        {**half(Q), **half(OTHER, 3)},
        with_(rank_pattern={"o": 5}),
        BadRequest,
        "of layers.0.o has rank 3, but adapter_config.json has 5",
    ),
    "a pattern that takes re years to refuse": (
        half(Q),
        with_(rank_pattern={"(.+)+#": 1, "(((q?){999}){999}){999}": 2}),
        BadFile,
        "adapter_config.json: its patterns of names would take very long",
    ),
    "patterns that are a list": (
        half(Q),
        with_(rank_pattern=["q"]),
        BadFile,
        "rank_pattern is a list, not a dict",
    ),
    "a rank of 400 digits": (half(Q), with_(r=10**400), BadFile, "has a number of 401 digits"),
    "DoRA": (half(Q), with_(use_dora=True), BadRequest, "has use_dora, but .* has no lora_magn"),
    "no DoRA": (
        {**half(Q), f"{Q}.lora_magnitude_vector.default.weight": noise(4)},
        CONFIG,
        BadRequest,
        "does not have use_dora",
    ),
    "modules": (
        {**half(Q), "base_model.model.head.modules_to_save.default.weight": noise(4, 4)},
        CONFIG,
        BadRequest,
        "does not have modules_to_save",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_would_be_another_model_is_refused(tmp_path: Path, case: str) -> None:
    tensors, config, error, sentence = REFUSED[case]
    source = saved(tmp_path / "in", tensors, config)
    with pytest.raises(error, match=sentence):
        exported(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_model_is_made_of_an_adapter_alone(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", half(Q) | {f"{OTHER}.bias": noise(4)}, CONFIG)
    with pytest.raises(BadRequest, match=r"without the weights of .* --base BASE_DIR.*only"):
        prepare_export(run, tmp_path / "model", Options())
    as_they_are = prepare_export(run, tmp_path / "model", Options(include=["*"]))
    assert len(as_they_are.target.checkpoint.tensors) == 3


def test_an_adapter_beside_its_model_is_merged_into_it(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", half(Q) | base(Q), CONFIG)
    made = prepare_export(run, tmp_path / "model", Options())
    assert [key.name for key in made.target.checkpoint.tensors] == ["layers.0.q.weight"]


def test_options_of_whole_models_are_refused(tmp_path: Path) -> None:
    source = saved(tmp_path / "in", half(Q), CONFIG)
    with pytest.raises(BadRequest, match="does not take --include and --keep-aliases"):
        exported(source, tmp_path / "out", include=("*",), keep_aliases=True)


@dataclass
class Peft:
    """A model with adapters of every kind, what PEFT saves of it, and what it says."""

    model: Any
    tokens: Any
    directory: Path

    def logits(self, model: Any) -> Any:
        import torch

        with torch.no_grad():
            return model.eval()(self.tokens).logits


@pytest.fixture(scope="module", params=["plain", "dora"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Peft:
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    from transformers import AutoConfig, AutoModelForCausalLM

    from harness.launching import TINY_LLAMA

    directory = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    config = AutoConfig.for_model(**TINY_LLAMA, architectures=["LlamaForCausalLM"])
    AutoModelForCausalLM.from_config(config).save_pretrained(directory / "base")
    lora = peft.LoraConfig(
        r=4,
        lora_alpha=6,
        target_modules=["q_proj", "down_proj"]
        + (["embed_tokens"] if request.param == "plain" else []),
        modules_to_save=["lm_head"],
        rank_pattern={"layers.1.self_attn.q_proj": 2},
        alpha_pattern={"down_proj": 3},
        use_rslora=request.param == "plain",
        use_dora=request.param == "dora",
        task_type="CAUSAL_LM",
    )
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(directory / "base"), lora)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory / "by-peft")
    return Peft(model, torch.arange(24).reshape(2, 12), directory)


def by_torch(peft: Peft, out: Path) -> Path:
    import torch

    out.mkdir()
    torch.save(peft.model.state_dict(), out / "pytorch_model.bin")
    return out


def by_dcp(peft: Peft, out: Path) -> Path:
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": peft.model.state_dict()}, checkpoint_id=out, no_dist=True)
    return out


@pytest.mark.torch
@pytest.mark.peft
@pytest.mark.filterwarnings(
    IGNORED,
    "ignore:torch.distributed is disabled:UserWarning",
    "ignore:Setting .save_embedding_layers. to .True.:UserWarning",
)
@pytest.mark.parametrize("save", [by_torch, by_dcp], ids=["torch", "dcp"])
def test_peft_loads_what_it_would_have_saved(
    trained: Peft, tmp_path: Path, save: Callable[[Peft, Path], Path]
) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    source = save(trained, tmp_path / "in")
    config = trained.directory / "by-peft"
    found = exported(source, tmp_path / "out", adapter_config=config)
    wanted = load_file(config / "adapter_model.safetensors")
    assert set(found) == set(wanted)
    assert all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)
    base = AutoModelForCausalLM.from_pretrained(trained.directory / "base")
    loaded = PeftModel.from_pretrained(base, tmp_path / "out")
    assert torch.equal(trained.logits(loaded), trained.logits(trained.model))

    merged, base_dir = tmp_path / "merged", trained.directory / "base"
    loaded.merge_and_unload().save_pretrained(merged)
    compared = diff(merged, base_dir, adapter=tmp_path / "out")
    assert compared.is_equal, compared.worst(3)
    assert compared.tolerance.text == "abs=1e-06,rel=1e-05"
    assert not diff(merged, base_dir, adapter=config_with(tmp_path, "out", lora_alpha=7)).is_equal
    assert not diff(merged, base_dir, tolerance=compared.tolerance.text).is_equal


def config_with(directory: Path, name: str, **keys: Any) -> Path:
    """A copy of an adapter with another config."""
    other = shutil.copytree(directory / name, directory / f"{name}-changed")
    config = json.loads((other / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps({**config, **keys}))
    return other


def test_a_merged_model_is_base_and_adapter(tmp_path: Path) -> None:
    """Also transposed, and in 16 bits."""
    weights = {"layers.0.q.weight": noise(4, 6), "layers.0.o.weight": noise(6, 4, seed=3)}
    base_dir = saved(tmp_path / "base", weights, None)
    adapter = saved(tmp_path / "adapter", {**half(Q), **half(OTHER)}, CONFIG)
    product = half(Q)[f"{Q}.lora_B.default.weight"] @ half(Q)[f"{Q}.lora_A.default.weight"]
    sums = {
        "layers.0.q.weight": weights["layers.0.q.weight"] + np.float32(4) * product,
        "layers.0.o.weight": weights["layers.0.o.weight"] + np.float32(4) * product.T,
    }
    wide = saved(tmp_path / "wide", sums, None)
    narrow = saved(tmp_path / "narrow", {n: a.astype(np.float16) for n, a in sums.items()}, None)
    for merged, tolerance in ((wide, "abs=1e-06,rel=1e-05"), (narrow, "abs=1e-06,rel=0.000976562")):
        compared = diff(merged, base_dir, adapter=adapter)
        assert (compared.is_equal, compared.tolerance.text) == (True, tolerance)
    sums["layers.0.o.weight"][5, 3] += 0.01
    wrong = saved(tmp_path / "wrong", sums, None)
    (worst,) = diff(wrong, base_dir, adapter=adapter).worst(3)
    assert (worst.name, worst.where) == ("layers.0.o.weight", (5, 3))
    other = saved(tmp_path / "other", {"layers.0.q.weight": noise(5, 5)}, None)
    with pytest.raises(BadRequest, match="other is not the base model of the adapter in"):
        diff(wide, other, adapter=adapter)
