"""Adapters by peft: they alone train, alike on any number of ranks, and are exported merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA
from tests.daemon.trainer.finetuning import VOCABULARY, adverts, make_tokenizer, write_lines
from tests.daemon.trainer.several import Runs, run_all
from zerotools.core.errors import BadRequest
from zerotools.jobs.tables.lora import LoraSpec
from zerotools.runs import checkpoint_dirs

pytestmark = pytest.mark.peft
TOLERANCE = 2e-6
TARGETS = ["q_proj", "down_proj"]
RANK, ALPHA = 4, 12.0


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory with weights and a tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    path = make_tokenizer(tmp_path_factory.mktemp("base"))
    torch.manual_seed(0)
    config = AutoConfig.for_model(**TINY_LLAMA | {"vocab_size": VOCABULARY})
    config.max_position_embeddings = 256
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


def lora_job(base: Path, examples: Path, **changes: Any) -> dict[str, Any]:
    data = {"prompt_column": "content", "response_column": "summary"}
    return {
        "model": {"path": str(base)},
        "data": {"text": [], "examples": [str(examples)], **data},
        "lora": {"rank": RANK, "alpha": ALPHA, "target_modules": TARGETS},
        "train": {"steps": 4, "learning_rate": 5e-2},
        **changes,
    }


@pytest.fixture(scope="module")
def runs(base: Path, tmp_path_factory: pytest.TempPathFactory, text: Path) -> dict[int, Runs]:
    """By number of ranks."""
    examples = write_lines(tmp_path_factory.mktemp("data") / "a.json", adverts(24))
    found = {}
    for ranks in (1, 2):
        directory = tmp_path_factory.mktemp("runs") / str(ranks)
        half = directory / "out" / "stage-3" / "out" / checkpoint_dirs.directory_name(2)
        jobs = {
            "stage-3": lora_job(base, examples, checkpoint={"every": 2}),
            "stage-1": lora_job(base, examples, zero={"stage": 1}),
            "again": lora_job(base, examples, resume_from=str(half)),
        }
        if ranks == 1:
            # Its layers keep their weights transposed; one of them is square.
            gpt2 = {"rank": RANK, "alpha": ALPHA, "target_modules": ["c_attn", "c_proj"]}
            train = {"steps": 2, "learning_rate": 5e-2}
            jobs["gpt2"] = {"model": {"config": TINY_GPT2}, "lora": gpt2, "train": train}
        found[ranks] = run_all(directory, text, ranks, jobs)
    return found


def test_adapters_learn_alike_on_all_ranks_and_resume(runs: dict[int, Runs]) -> None:
    losses = runs[1].losses("stage-3")
    assert losses[-1] < losses[0] - 0.1
    assert runs[2].losses("stage-3") == pytest.approx(losses, rel=TOLERANCE)
    assert runs[2].losses("stage-1") == pytest.approx(losses, rel=TOLERANCE)
    assert runs[2].losses("again") == runs[2].losses("stage-3")[2:]
    assert runs[2].ended("again") == runs[2].ended("stage-3")


def test_the_record_says_what_was_trained(runs: dict[int, Runs]) -> None:
    record = checkpoint_dirs.check(runs[2].checkpoint("stage-3", 4))
    assert record.lora is not None
    assert (record.lora.rank, record.lora.scale) == (RANK, ALPHA / RANK)
    hidden, inner, layers = 32, 64, 2
    assert record.model.trainable == layers * RANK * (hidden + hidden + inner + hidden)
    assert {name for group in record.optimizer.groups for name in group.params} == {
        f"model.layers.{layer}.{module}.lora_{half}.default.weight"
        for layer in range(layers)
        for module in ("self_attn.q_proj", "mlp.down_proj")
        for half in "AB"
    }


def test_consolidate_adds_the_adapters_to_the_weights(
    runs: dict[int, Runs], base: Path, tmp_path: Path
) -> None:
    import torch
    from click.testing import CliRunner
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from zerotools import load_state_dict
    from zerotools.cli.main import build

    source, out = runs[2].checkpoint("stage-3", 4), tmp_path / "exported"
    words = ["consolidate", str(source), str(out), "--dtype", "fp32", "--verify"]
    result = CliRunner().invoke(build(), words)
    assert result.exit_code == 0, result.output
    assert "4 weights get their adapters added, scaled by 3" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exported"]
    exported, before = load_file(out / "model.safetensors"), load_file(base / "model.safetensors")
    raw = load_state_dict(source)
    assert exported.keys() == before.keys()
    for name, weight in exported.items():
        stem = name.removesuffix(".weight")
        wanted = before[name]
        if stem.endswith(tuple(TARGETS)):
            up, down = (raw[f"{stem}.lora_{half}.default.weight"] for half in "BA")
            assert not torch.equal(weight, wanted)
            wanted = wanted + ALPHA / RANK * (up @ down)
        torch.testing.assert_close(weight, wanted, rtol=1e-6, atol=1e-7)
    AutoModelForCausalLM.from_pretrained(out)


def test_what_is_exported_says_what_the_adapted_model_says(
    runs: dict[int, Runs], tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config

    from zerotools import load_state_dict
    from zerotools.ops.conversions.consolidate import Options, prepare
    from zerotools.ops.conversions.conversion import perform
    from zerotools.ops.execution.workers import MemoryBudget
    from zerotoolsd.trainer.model.lora import add_adapters

    source, out = runs[1].checkpoint("gpt2", 2), tmp_path / "exported"
    perform(prepare(source, out, Options(dtype="fp32")), budget=MemoryBudget(), overwrite=False)
    adapted = AutoModelForCausalLM.from_config(GPT2Config(**TINY_GPT2))
    plain = AutoModelForCausalLM.from_pretrained(out).eval()
    spec = LoraSpec(rank=RANK, alpha=ALPHA, target_modules=("c_attn", "c_proj"))
    add_adapters(adapted, spec)
    found = adapted.load_state_dict(load_state_dict(source), strict=False, assign=True)
    assert found.missing_keys in ([], ["lm_head.weight"])
    adapted.tie_weights()
    ids = torch.arange(32).view(1, 32)
    with torch.no_grad():
        wanted, found = (model.eval()(input_ids=ids).logits for model in (adapted, plain))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        zeros = {name: p * (".lora_B." not in name) for name, p in adapted.named_parameters()}
        without = torch.func.functional_call(adapted, zeros, (ids,)).logits
    assert (wanted - without).abs().max() > 1e-2


def test_an_adapter_on_a_tied_weight_is_refused() -> None:
    from transformers import LlamaConfig

    from zerotoolsd.trainer.model.meta_model import draw

    config = LlamaConfig(**TINY_LLAMA | {"tie_word_embeddings": True})
    with pytest.raises(BadRequest, match=r"lm_head shares its weight with model\.embed_tokens"):
        draw(config, LoraSpec(rank=RANK, target_modules=("q_proj", "lm_head")))
