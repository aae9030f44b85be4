"""Shapes from configs, headers and numbers."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked_programs import forked_programs
from tests.golden_files import DEEPSPEED
from tests.ops.estimate.tiny_configs import config
from tests.ops.weights.test_add_base_model_weights import saved
from zerotools import formats
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.training_memory_layout import DEVICE, MOMENTS, MemoryLayout
from zerotools.ops.estimate import parameter_shapes
from zerotools.ops.estimate.parameter_shapes import of_config, read_shape, with_adapters
from zerotools.ops.estimate.state_memory import Parameter, state_of


@pytest.mark.parametrize("text", ["1M", "20M", "7B", "13b", "350M", "0.5B", "70B", "1T"])
def test_a_number_stands_for_exactly_so_many_parameters(text: str) -> None:
    found = read_shape(text)
    units = {"m": 10**6, "b": 10**9, "t": 10**12}
    assert found.count == int(float(text[:-1]) * units[text[-1].lower()])
    assert found.architecture is not None
    assert "Llama-like" in found.notes[0]
    assert sum(len(parameter.shape) < 2 for parameter in found.parameters) < 1000
    assert all(size > 0 for parameter in found.parameters for size in parameter.shape)


LLAMA_13B = {
    "model_type": "llama", "hidden_size": 5120, "intermediate_size": 13824,
    "num_attention_heads": 40, "num_hidden_layers": 40, "vocab_size": 32000,
}  # fmt: skip


@pytest.mark.parametrize("optimizer", ["adamw", "adamw8bit", "adafactor", "muon"])
@pytest.mark.parametrize("ranks", [1, 8])
def test_a_number_has_the_optimizer_state_of_a_model_of_that_size(
    optimizer: str, ranks: int
) -> None:
    layout = MemoryLayout(3, ranks, optimizer=optimizer)
    model, named = of_config(LLAMA_13B, "config"), read_shape("13B")
    sizes = [
        state_of(each.parameters, layout)[DEVICE, MOMENTS] / each.count for each in (model, named)
    ]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.02)


@pytest.mark.parametrize("text", ["", "7", "B", "7Q", "-7B", "7 B B", "999K"])
def test_what_is_no_model_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        read_shape(text or "nothing")


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("owner/chat2-6b", "6B"),
        ("owner/Model-1.5B-Instruct", "1.5B"),
        ("/data/70b/base", "7B"),
        ("m-8x7b", "7B"),
    ],
)
def test_a_model_that_is_not_here_is_estimated_by_its_size(name: str, size: str) -> None:
    with pytest.raises(BadRequest, match=f"run zerotools estimate {size} for a model of that"):
        read_shape(name)


def test_a_checkpoint_in_a_store_is_refused_as_one() -> None:
    with pytest.raises(Unsupported, match="gs://bucket/run is in an object store"):
        read_shape("gs://bucket/run")


def test_a_config_says_all_of_a_known_architecture(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config("llama")))
    assert read_shape(str(file)).count == read_shape(str(tmp_path)).count
    assert read_shape(str(file)).architecture is not None


def test_a_checkpoint_has_its_shapes_in_its_headers() -> None:
    found = read_shape(str(DEEPSPEED / "z3-bf16-w2" / "checkpoint"))
    assert found.architecture is None
    assert found.count > 0
    assert "activations are unknown" in found.notes[0]


def test_a_checkpoint_s_own_config_says_its_activations_where_it_is_of_this_model(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    shutil.copytree(DEEPSPEED / "hf-trainer-z3-bf16-w2" / "checkpoint", run)
    (run / "checkpoint-2" / "config.json").rename(run / "config.json")
    tree = json.loads((run / "config.json").read_text())
    found = read_shape(str(run / "checkpoint-2"))
    assert found.architecture == of_config(tree, "config").architecture
    assert not found.notes
    (run / "config.json").write_text(json.dumps({**tree, "num_hidden_layers": 7}))
    other = read_shape(str(run / "checkpoint-2"))
    assert other.architecture is None
    assert other.parameters == found.parameters


def test_adapters_that_were_saved_alone_are_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "read_any", lambda path: saved(tmp_path))
    with pytest.raises(BadRequest, match=r"holds only adapters.* name the job file, or .*model"):
        read_shape(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "is not a model config"),
        ('{"model_type": "llama", "hidden_size": null}', "has no hidden_size"),
        ('{"model_type": ["llama"]}', "is not a model config"),
    ],
)
def test_a_config_that_is_none_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(BadRequest, match=said):
        read_shape(str(file))


@pytest.mark.torch
def test_transformers_is_asked_for_other_architectures(tmp_path: Path) -> None:
    tree: dict[str, Any] = {"model_type": "gpt_neo", "num_layers": 2, "num_heads": 4}
    tree |= {"hidden_size": 32, "vocab_size": 96, "attention_types": [[["global", "local"], 1]]}
    with forked_programs(tmp_path):
        found = of_config(tree, "config")
    assert found.architecture is None
    assert found.notes == (
        "config: activations are unknown for model_type 'gpt_neo'; the training state is exact",
    )
    assert {p.block for p in found.parameters} == {None, "transformer.h.0", "transformer.h.1"}


@pytest.mark.full  # as for the architecture above, in another process that imports transformers
@pytest.mark.torch
def test_a_model_of_images_is_the_class_that_its_config_names() -> None:
    tree: dict[str, Any] = {"model_type": "vit", "hidden_size": 8, "num_attention_heads": 2}
    tree |= {"num_hidden_layers": 1, "intermediate_size": 16, "image_size": 8, "patch_size": 4}
    named = of_config({**tree, "architectures": ["ViTForImageClassification"]}, "config")
    embeddings, block, norm, head = 8 + 5 * 8 + (3 * 16 * 8 + 8), 4 * 72 + 144 + 136 + 32, 16, 18
    assert named.count == embeddings + block + norm + head == 1074
    assert named.notes[0].endswith("the training state is exact")


def test_weights_that_are_packed_are_counted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_shapes, "_built", lambda *_: ("A", (Parameter((7,)),)))
    tree = {"model_type": "llama", "quantization_config": {"load_in_4bit": True}}
    (note,) = of_config(tree, "config").notes
    assert "as if they were not quantised" in note
    assert "exact" not in note


@pytest.mark.parametrize(
    "tree", [config("llama"), {"model_type": "other"}], ids=["known", "asked for"]
)
def test_another_head_than_the_config_names_is_said(
    tree: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameter_shapes, "_built", lambda *_: ("AForCausalLM", (Parameter((7,)),)))
    notes = of_config({**tree, "architectures": ["AForSequenceClassification"]}, "config").notes
    assert "the config names AForSequenceClassification" in notes[-1]
    assert not any("exact" in note for note in notes)
    for named in (["AForCausalLM"], "AForSequenceClassification", 7, [7], [], None):
        notes = of_config({**tree, "architectures": named}, "config").notes
        assert not any("names" in note for note in notes)


@pytest.mark.full  # transformers is asked, which takes seconds to import
def test_an_architecture_that_transformers_does_not_know_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"does not know the shapes of model_type 'nothing'"):
        of_config({"model_type": "nothing"}, "config", sys.executable)


def test_an_architecture_is_refused_if_transformers_cannot_be_asked() -> None:
    with pytest.raises(Unsupported, match="transformers was not tried"):
        of_config({"model_type": "mamba"}, "config", None)
    with pytest.raises(Unsupported, match=r"/bin/false could not compute them"):
        of_config({"model_type": "mamba"}, "config", "/bin/false")


def test_an_answer_that_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_shapes, "_PROGRAM", "input(); import time; time.sleep(60)")
    monkeypatch.setattr(parameter_shapes, "TRANSFORMERS_SECONDS", 0.2)
    with pytest.raises(Unsupported, match=r"compute them \(it did not answer within 0\.2 s\);"):
        of_config({"model_type": "mamba"}, "config", sys.executable)


@pytest.mark.peft
@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("llama", ()),
        ("llama", ("q_proj", "k_proj", "down_proj")),
        ("qwen2", ("all-linear",)),
        ("gpt2", ()),
        ("gpt_neox", ()),
        ("phi3", ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")),
    ],
    ids=str,
)
def test_as_many_as_peft_has(name: str, targets: tuple[str, ...]) -> None:
    from zerotools.jobs.jobfile_tables.lora import LoraSpec
    from zerotools.jobs.jobfile_tables.model import ModelSpec
    from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config

    tree = config(name)
    found = with_adapters(of_config(tree, "config"), 4, targets)
    if targets == ("all-linear",):
        targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    model = make_meta_model(
        read_config(ModelSpec(config=tree)), LoraSpec(rank=4, target_modules=targets)
    )
    trained = sum(p.numel for p in found.parameters if p.is_trained)
    frozen = sum(p.numel for p in found.parameters if not p.is_trained)
    assert (trained, frozen) == model.parameter_count()


def test_of_an_unknown_architecture_they_are_not_counted() -> None:
    from dataclasses import replace

    model = replace(of_config(config("llama"), "config"), architecture=None)
    found = with_adapters(model, 4)
    assert not any(p.is_trained for p in found.parameters)
    assert "adapters are not counted" in found.notes[-1]


def test_matrices_of_blocks_are_packed_and_nothing_else() -> None:
    tree = config("llama")
    found = with_adapters(of_config(tree, "config"), 4, packs_frozen=True)
    packed = [each for each in found.parameters if each.is_packed]
    assert len(packed) == 7 * tree["num_hidden_layers"]
    assert not any(each.is_trained or each.block is None for each in packed)
