"""Adapters by peft: they alone train, alike on any number of ranks, and are exported merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA
from tests.daemon.trainer.finetuning import VOCABULARY, adverts, make_tokenizer, write_lines
from tests.daemon.trainer.meshes import check_memory
from tests.daemon.trainer.several import Runs, run_all
from tests.matrices import FULL
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.lora import LoraSpec
from zerotools.runs import find_job_checkpoints

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
        half = directory / "out" / "stage-3" / "out" / find_job_checkpoints.directory_name(2)
        jobs = {"stage-3": lora_job(base, examples)}
        if ranks == 2:
            jobs["stage-3"]["checkpoint"] = {"every": 2}
            if FULL:  # frozen weights that are kept whole
                jobs["stage-1"] = lora_job(base, examples, zero={"stage": 1})
            jobs["again"] = lora_job(base, examples, resume_from=str(half))
        else:
            # Its layers keep their weights transposed; one of them is square.
            gpt2 = {"rank": RANK, "alpha": ALPHA, "target_modules": ["c_attn", "c_proj"]}
            train = {"steps": 2, "learning_rate": 5e-2}
            jobs["gpt2"] = {"model": {"config": TINY_GPT2}, "lora": gpt2, "train": train}
            jobs["gpt2"]["checkpoint"] = {"every": 2}
        found[ranks] = run_all(directory, text, ranks, jobs, ends=("stage-3",)[: ranks - 1])
    return found


def test_adapters_learn_alike_on_all_ranks_and_resume(runs: dict[int, Runs]) -> None:
    losses = runs[1].losses("stage-3")
    assert losses[-1] < losses[0] - 0.1
    assert runs[2].losses("stage-3") == pytest.approx(losses, rel=TOLERANCE)
    if FULL:
        assert runs[2].losses("stage-1") == pytest.approx(losses, rel=TOLERANCE)
    assert runs[2].losses("again") == runs[2].losses("stage-3")[2:]
    assert runs[2].ended("again") == runs[2].ended("stage-3")


def test_the_record_says_what_was_trained(runs: dict[int, Runs]) -> None:
    record = find_job_checkpoints.verify_checkpoint_files(runs[2].checkpoint("stage-3", 4))
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
    assert "adapters are added to 4 weights, scaled by 3" in result.output
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["exported", "exported.zerotools.json"]
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
    from zerotools.ops.conversions.consolidate import Options, prepare_export
    from zerotools.ops.conversions.conversion import perform_conversion
    from zerotools.ops.execution.tile_workers import MemoryBudget
    from zerotoolsd.trainer.model.add_lora_adapters import add_adapters

    source, out = runs[1].checkpoint("gpt2", 2), tmp_path / "exported"
    perform_conversion(
        prepare_export(source, out, Options(dtype="fp32")), budget=MemoryBudget(), overwrite=False
    )
    config = runs[1].jobs["gpt2"]["model"]["config"]
    adapted = AutoModelForCausalLM.from_config(GPT2Config(**config))
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


LAST = 3
HALF = {"steps": LAST, "learning_rate": 5e-2, "precision": "bf16"}
PLACES: dict[str, dict[str, Any]] = {
    "3": {},
    "3-cpu": {"offload": {"optimizer": "cpu"}},
    "3-params": {"offload": {"params": "cpu"}},
}
RESUMED: tuple[str, ...] = ("3-cpu",)
"""With masters on the host; those on the device are resumed in `engine_torch/test_offload`."""
if FULL:
    PLACES |= {f"{stage}": {"zero": {"stage": stage}} for stage in (0, 1, 2)}
    RESUMED = tuple(PLACES)


@pytest.fixture(scope="module")
def halves(base: Path, tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    """Runs in bf16 on two ranks, from weights in bf16: those that keep frozen weights in it, one
    that keeps them in fp32, and those that go on from the second step of the first."""
    import torch
    from transformers import AutoModelForCausalLM

    source = make_tokenizer(tmp_path_factory.mktemp("half"))
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    model.save_pretrained(source)
    examples = write_lines(tmp_path_factory.mktemp("data") / "a.json", adverts(24))
    directory, jobs = tmp_path_factory.mktemp("runs") / "half", {}
    for name, changes in PLACES.items():
        tree = lora_job(source, examples, train=HALF, **changes)
        if name in (*RESUMED, "3"):
            tree["checkpoint"] = {"every": 2}
        for kept in ("train", "fp32") if name == "3" else ("train",):
            lora = {**tree["lora"], "frozen_precision": kept}
            jobs[f"{name}-{kept}"] = {**tree, "lora": lora}
        step = directory / "out" / f"{name}-train" / "out" / find_job_checkpoints.directory_name(2)
        if name in RESUMED:
            again = {**jobs[f"{name}-train"], "resume_from": str(step)}
            jobs[f"{name}-again"] = {**again, "checkpoint": {}}
    # Of before frozen weights were kept in 16 bits, and back.
    for name, kept in (("3-again-older", "fp32"), ("3-again-newer", "train")):
        saved = "3-train" if kept == "fp32" else "3-fp32"
        step = directory / "out" / saved / "out" / find_job_checkpoints.directory_name(2)
        jobs[name] = {**jobs[f"3-{kept}"], "resume_from": str(step), "checkpoint": {}}
    ends = [name for name in jobs if "again" not in name]
    return run_all(directory, text, 2, jobs, ends=ends, asked=("begins",))


def test_each_rank_holds_what_was_predicted(halves: Runs) -> None:
    for name in PLACES:
        check_memory(halves, f"{name}-train", near=0.0)


def test_frozen_weights_of_16_bits_train_the_same_adapters(halves: Runs) -> None:
    wanted = halves.losses("3-fp32")
    assert wanted[-1] < wanted[0] - 0.05
    for name in PLACES:
        assert halves.losses(f"{name}-train") == pytest.approx(wanted, rel=1e-3)
        assert halves.losses(f"{name}-train")[0] == pytest.approx(wanted[0], rel=TOLERANCE)
    for name in RESUMED:
        assert halves.losses(f"{name}-again") == halves.losses(f"{name}-train")[2:]
        assert halves.ended(f"{name}-again") == halves.ended(f"{name}-train")
    for name, other in (("older", "train"), ("newer", "fp32")):
        found = pytest.approx(halves.losses(f"3-{other}")[2:], rel=1e-3)
        assert halves.losses(f"3-again-{name}") == found


@pytest.mark.parametrize("name", PLACES)
def test_frozen_weights_keep_their_bits_in_checkpoint_and_export(
    halves: Runs, tmp_path: Path, name: str
) -> None:
    import torch
    from safetensors.torch import load_file

    from zerotools import load_state_dict
    from zerotools.ops.conversions.consolidate import Options, prepare_export
    from zerotools.ops.conversions.conversion import perform_conversion
    from zerotools.ops.execution.tile_workers import MemoryBudget

    source, out = halves.checkpoint(f"{name}-train", LAST), tmp_path / "exported"
    started = halves.report[f"{name}-train"]
    model = load_state_dict(source)
    perform_conversion(
        prepare_export(source, out, Options()), budget=MemoryBudget(), overwrite=False
    )
    exported = load_file(out / "model.safetensors")
    for key, saved in model.items():
        stem = key.replace(".base_layer.", ".")
        if ".lora_" in key:
            assert saved.dtype == torch.float32
            continue
        assert saved.dtype == torch.bfloat16
        if not stem.removesuffix(".weight").endswith(tuple(TARGETS)):
            assert torch.equal(exported[stem], saved)
            continue
        up, down = (model[f"{stem.removesuffix('.weight')}.lora_{h}.default.weight"] for h in "BA")
        added = saved.float() + ALPHA / RANK * (up @ down)
        torch.testing.assert_close(exported[stem].float(), added, rtol=2**-8, atol=1e-7)
    assert started["begun"] != started["ended"]


def test_frozen_weights_are_those_of_the_directory(halves: Runs) -> None:
    import torch

    from zerotools import load_state_dict

    record = find_job_checkpoints.verify_checkpoint_files(halves.checkpoint("3-train", LAST))
    assert record.model.frozen > 0
    kept = {name: load_state_dict(halves.checkpoint(f"{name}-train", LAST)) for name in PLACES}
    exact = load_state_dict(halves.checkpoint("3-fp32", LAST))
    for found in kept.values():
        for name, tensor in found.items():
            if ".lora_" not in name:
                assert torch.equal(tensor.float(), exact[name])


def test_only_linear_layers_get_adapters() -> None:
    from transformers import LlamaConfig

    from zerotoolsd.trainer.model.meta_model import make_meta_model

    with pytest.raises(BadRequest, match=r"model\.embed_tokens is of type Embedding, but only"):
        make_meta_model(
            LlamaConfig(**TINY_LLAMA), LoraSpec(rank=2, target_modules=("embed_tokens",))
        )


def test_two_types_of_weights_need_a_torch_that_gathers_them() -> None:
    from zerotools.core.errors import Unsupported
    from zerotools.core.training_memory_layout import MemoryLayout
    from zerotoolsd.trainer.model.add_lora_adapters import check_frozen_type

    mixed = MemoryLayout(3, 2, offload_params="cpu", frozen_precision="train")
    with pytest.raises(Unsupported, match=r"torch 2\.7\.1 cannot gather frozen weights in bf16"):
        check_frozen_type(mixed, "2.7.1")
    check_frozen_type(mixed, "2.13.0+cpu")
    for layout in (MemoryLayout(3, 2, frozen_precision="train"), MemoryLayout(3, 2)):
        check_frozen_type(layout, "2.6.0")


def test_an_adapter_on_a_tied_weight_is_refused() -> None:
    from transformers import LlamaConfig

    from zerotoolsd.trainer.model.meta_model import make_meta_model

    config = LlamaConfig(**TINY_LLAMA | {"tie_word_embeddings": True})
    with pytest.raises(BadRequest, match=r"lm_head shares its weight with model\.embed_tokens"):
        make_meta_model(config, LoraSpec(rank=RANK, target_modules=("q_proj", "lm_head")))
