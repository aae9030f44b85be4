"""QLoRA: what it learns is what peft and bitsandbytes learn, alike on any ranks; its checkpoints
hold adapters alone and know their base model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA, job, run, start
from tests.daemon.trainer.several import Runs, run_all
from tests.matrices import FULL
from zerotools.core.training_memory_layout import DEVICE, GRADIENTS, MASTERS, MOMENTS, WEIGHTS
from zerotools.runs import find_job_checkpoints

pytestmark = [
    pytest.mark.peft,
    pytest.mark.full,
    pytest.mark.dear(60, "three numbers of ranks, and peft beside them"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"),
]
STEPS, RATE, RANK, ALPHA = 4, 5e-2, 4, 12
TARGETS = ["q_proj", "down_proj"]
MODEL = {**TINY_LLAMA, "vocab_size": 287}
TOLERANCE = 2e-6
STAGES = (0, 1, 2, 3)


@pytest.fixture(scope="module", autouse=True)
def _needs_bitsandbytes() -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model, and beside it an adapter that does something."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    path = tmp_path_factory.mktemp("base") / "model"
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(**MODEL))
    model.save_pretrained(path)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, init_lora_weights=False)
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        for name, value in adapted.named_parameters():
            if "lora_" in name:
                value.mul_(0.1)
    adapted.save_pretrained(path.with_name("adapter"))
    return path


def qlora_job(base: Path, **changes: Any) -> dict[str, Any]:
    lora = {"rank": RANK, "alpha": ALPHA, "target_modules": TARGETS, "frozen_precision": "nf4"}
    lora |= {"path": str(base.with_name("adapter"))} | changes.pop("lora", {})
    train = {"steps": STEPS, "learning_rate": RATE, **changes.pop("train", {})}
    return {"model": {"path": str(base)}, "lora": lora, "train": train, **changes}


def jobs_on(directory: Path, base: Path) -> dict[str, dict[str, Any]]:
    jobs = {}
    for stage in STAGES if FULL else (3,):
        zero, half = {"stage": stage}, {"precision": "bf16"}
        step = directory / "out" / str(stage) / "out" / find_job_checkpoints.directory_name(2)
        jobs[f"{stage}"] = qlora_job(base, zero=zero, checkpoint={"every": 2})
        jobs[f"again-{stage}"] = qlora_job(base, zero=zero, resume_from=str(step))
        jobs[f"half-{stage}"] = qlora_job(base, zero=zero, train=half)
    jobs["single"] = qlora_job(base, lora={"double_quant": False})
    jobs["micro"] = qlora_job(base, train={"micro_batch_size": 2, "activation_checkpointing": True})
    jobs["host"] = qlora_job(base, train={"precision": "bf16"}, offload={"optimizer": "cpu"})
    return jobs


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory: pytest.TempPathFactory, text: Path, base: Path) -> dict[int, Runs]:
    """On 1, 2 and 3 ranks; those on 3 also go on from the 2."""
    root, found, more = tmp_path_factory.mktemp("by-ranks"), dict[int, Runs](), {}
    for ranks in (1, 2, 3):
        directory = root / str(ranks)
        found[ranks] = run_all(directory, text, ranks, jobs_on(directory, base) | more)
        path = str(found[ranks].checkpoint("3", 2))
        more = {"moved": qlora_job(base, zero={"stage": 0}, resume_from=path)}
    return found


def losses_by_peft(base: Path, text: Path, *, double_quant: bool, half: bool) -> Iterator[float]:
    """The losses of a loop around peft's model on bitsandbytes' layers."""
    import torch
    from peft import PeftModel, prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    from zerotoolsd.trainer.data.batches import Batches
    from zerotoolsd.trainer.data.example_pools import TokenWindows
    from zerotoolsd.trainer.data.token_stream import ByteTokens

    dtype = torch.bfloat16 if half else torch.float32
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=double_quant,
        bnb_4bit_compute_dtype=dtype,
    )
    loaded = AutoModelForCausalLM.from_pretrained(
        base, quantization_config=config, dtype=dtype, device_map="cpu"
    )
    model = prepare_model_for_kbit_training(
        loaded, gradient_checkpointing_kwargs={"use_reentrant": False}
    )
    model = PeftModel.from_pretrained(model, base.with_name("adapter"), is_trainable=True).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    batches = Batches(TokenWindows(ByteTokens([text], [text.stat().st_size]), 32), seed=7)
    for step in range(STEPS):
        examples = batches.examples(12 * step, 12)
        inputs = torch.tensor([[int(i) for i in each.inputs] for each in examples])
        labels = torch.tensor([[int(i) for i in each.targets] for each in examples])
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model(input_ids=inputs).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield float(loss.detach())


@pytest.mark.parametrize(
    ("name", "double_quant", "rel"),
    [("3", True, TOLERANCE), ("single", False, TOLERANCE), ("half-3", True, 1e-3)],
)
def test_losses_are_those_of_peft_and_bitsandbytes(
    by_ranks: dict[int, Runs], base: Path, text: Path, name: str, double_quant: bool, rel: float
) -> None:
    half = name.startswith("half")
    wanted = list(losses_by_peft(base, text, double_quant=double_quant, half=half))
    assert wanted[-1] < wanted[0] - 0.05
    for runs in by_ranks.values():
        assert runs.losses(name) == pytest.approx(wanted, rel=rel)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_stage_learns_the_same_and_resumes_bit_for_bit(
    by_ranks: dict[int, Runs], ranks: int
) -> None:
    runs, wanted = by_ranks[ranks], pytest.approx(by_ranks[1].losses("3"), rel=TOLERANCE)
    for stage in STAGES if FULL else (3,):
        assert runs.losses(f"{stage}") == wanted
        assert runs.losses(f"again-{stage}") == runs.losses(f"{stage}")[2:]
        assert runs.ended(f"again-{stage}") == runs.ended(f"{stage}")
    assert runs.losses("micro") == wanted
    assert runs.losses("host") == runs.losses("half-3")
    if ranks > 1:
        expected = pytest.approx(by_ranks[ranks - 1].losses("3")[2:], rel=TOLERANCE)
        assert runs.losses("moved") == expected


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_is_held_is_what_was_predicted(
    by_ranks: dict[int, Runs], ranks: int, base: Path, text: Path
) -> None:
    from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of
    from zerotools.jobs.jobfile.parse import job_from_dict
    from zerotools.ops.estimate.state_memory import torch_engine_state
    from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config
    from zerotoolsd.trainer.model.predict_state_memory import parameters_of

    for name, tree in jobs_on(Path("/none"), base).items():
        if name.startswith("again"):
            continue
        spec = job_from_dict(job(text, ranks=ranks, **tree), source=name)
        layout = memory_layout_of(spec)
        predicted = torch_engine_state(
            parameters_of(make_meta_model(read_config(spec.model), spec.lora)), layout
        )
        held = by_ranks[ranks].report[name]["end"]["live"]
        for sort in (WEIGHTS, MASTERS, MOMENTS):
            place = DEVICE if sort == WEIGHTS else layout.state_tier
            most = max(rank.get(f"{place} {sort}", 0) for rank in held)
            assert most == predicted.get((place, sort), 0), (name, sort)
        assert predicted[layout.gradients_tier, GRADIENTS] > 0


def test_the_tools_know_what_was_saved(
    by_ranks: dict[int, Runs], base: Path, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from zerotools import load_state_dict
    from zerotools.ops.conversions.consolidate import Options, prepare_export
    from zerotools.ops.conversions.conversion import perform_conversion
    from zerotools.ops.execution.tile_workers import MemoryBudget

    source, out = by_ranks[3].checkpoint("3", STEPS), tmp_path / "exported"
    raw, before = load_state_dict(source), load_file(base / "model.safetensors")
    assert all(".lora_" in name for name in raw)
    perform_conversion(
        prepare_export(source, out, Options(dtype="fp32")), budget=MemoryBudget(), overwrite=False
    )
    exported = load_file(out / "model.safetensors")
    assert exported.keys() == before.keys()
    for name, weight in exported.items():
        stem, wanted = name.removesuffix(".weight"), before[name]
        if stem.endswith(tuple(TARGETS)):
            up, down = (raw[f"{stem}.lora_{half}.default.weight"] for half in "BA")
            wanted = wanted + ALPHA / RANK * (up @ down)
        torch.testing.assert_close(weight, wanted, rtol=1e-6, atol=1e-7)
    AutoModelForCausalLM.from_pretrained(out)
    record = find_job_checkpoints.verify_checkpoint_files(source)
    assert record.lora is not None
    assert record.lora.base is not None
    assert record.lora.base.path == str(base)
    assert record.model.frozen == sum(tensor.numel() for tensor in before.values())


def test_a_run_does_not_go_on_beside_another_base(
    by_ranks: dict[int, Runs], base: Path, text: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    other = tmp_path / "model"
    shutil.copytree(base, other)
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"] += 1
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    source = str(by_ranks[1].checkpoint("3", 2))
    tree = job(text, **qlora_job(base, resume_from=source) | {"model": {"path": str(other)}})
    attempt = start(tmp_path / "run", tree)
    assert attempt.finish() != [0]
    assert "model.safetensors is not the file that the adapters of" in attempt.log()


def test_a_finished_job_is_exported(base: Path, text: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from zerotoolsd.children.export import export_newest

    run(tmp_path / "run", job(text, **qlora_job(base)))
    out = tmp_path / "run" / "out"
    model = AutoModelForCausalLM.from_pretrained(base)
    PeftModel.from_pretrained(model, export_newest(out, "adapter"))
    AutoModelForCausalLM.from_pretrained(export_newest(out, "bf16"))
