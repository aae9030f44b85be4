"""Adapters out to peft, and in again: what peft computes is what the job trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.trainer.several import Runs, run_all
from tests.daemon.trainer.test_dpo_reference import GOLDEN
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.checkpoint import ADAPTER
from zerotools.jobs.jobfile_tables.lora import LoraSpec
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotoolsd.children.export import export_newest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.peft,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`"),  # peft asks for it
]
LORA = {"rank": 3, "alpha": 12, "target_modules": ["q_proj", "down_proj"]}
MODEL = GOLDEN / "model"
CLOSE = 1e-5


def lora_job(stage: int, **changes: Any) -> dict[str, Any]:
    return {
        "model": {"path": str(MODEL)},
        "train": {"steps": 2, "learning_rate": 0.05},
        "zero": {"stage": stage},
        "lora": {**LORA, **changes.pop("lora", {})},
        **changes,
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, text: Path) -> tuple[Runs, Path]:
    """A run with adapters, and the directory that it exports."""
    directory = tmp_path_factory.mktemp("adapters") / "out"
    runs = run_all(directory, text, 1, {"first": lora_job(0)})
    return runs, export_newest(runs.directory / "first" / "out", ADAPTER)


def test_peft_computes_what_the_job_trained(trained: tuple[Runs, Path], tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import LlamaForCausalLM

    runs, directory = trained
    assert sorted(path.name for path in directory.iterdir() if path.name[0] != ".") == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    merged = prepare_export(runs.checkpoint("first", 2), tmp_path / "merged", Options(dtype="fp32"))
    perform_conversion(merged, budget=MemoryBudget(1 << 28), overwrite=False)
    base = LlamaForCausalLM.from_pretrained(MODEL).eval()
    ids = torch.arange(3, 30).view(1, -1)
    with torch.no_grad():
        plain = base(ids).logits
        found = PeftModel.from_pretrained(base, directory).eval()(ids).logits
        wanted = LlamaForCausalLM.from_pretrained(tmp_path / "merged").eval()(ids).logits
    torch.testing.assert_close(found, wanted, rtol=CLOSE, atol=CLOSE)
    assert (plain - found).abs().max() > 0.05


def test_a_job_goes_on_from_the_directory_at_any_number_of_ranks(
    trained: tuple[Runs, Path], tmp_path: Path, text: Path
) -> None:
    runs, directory = trained
    jobs = {f"stage-{n}": lora_job(n, lora={"path": str(directory)}) for n in (1, 3)}
    jobs["anew"] = lora_job(1)
    after = run_all(tmp_path / "after", text, 2, jobs, asked=("evaluates",))
    first = runs.losses("first")[0]
    assert after.losses("anew")[0] == pytest.approx(first, rel=CLOSE)
    assert after.report["stage-1"]["evaluated"] < first - 0.01
    assert after.losses("stage-1") == pytest.approx(after.losses("stage-3"), rel=CLOSE)
    assert after.losses("stage-1")[0] == pytest.approx(
        evaluated_by_peft(directory, text), rel=CLOSE
    )


def evaluated_by_peft(directory: Path, text: Path) -> float:
    """The loss of the first batch with the adapter of the directory."""
    import torch
    from peft import PeftModel
    from transformers import LlamaForCausalLM

    from zerotoolsd.trainer.data.batches import Batches
    from zerotoolsd.trainer.data.example_pools import TokenWindows
    from zerotoolsd.trainer.data.token_stream import ByteTokens

    stream = ByteTokens([text], [text.stat().st_size])
    examples = Batches(TokenWindows(stream, 32), seed=7).examples(0, 12)
    inputs, labels = (
        torch.tensor([[int(n) for n in getattr(each, name)] for each in examples])
        for name in ("inputs", "targets")
    )
    model = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(MODEL), directory).eval()
    with torch.no_grad():
        logits = model(input_ids=inputs).logits
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))


@pytest.mark.parametrize(
    ("changes", "config", "said"),
    [
        (
            {"rank": 2},
            {},
            "is an adapter of rank 3, but lora.rank is 2; set lora.rank to the rank of the adapter",
        ),
        (
            {"alpha": 6},
            {},
            "by 4, but the job scales them by 2; set lora.alpha = 12",
        ),
        ({"target_modules": ["q_proj"]}, {}, "down_proj.lora_A.weight, which the job does not"),
        (
            {"target_modules": ["q_proj", "down_proj", "k_proj"]},
            {},
            "has no base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight, which the job",
        ),
        (
            {},
            {"hidden_size": 20},
            "q_proj.lora_A.weight has shape [3, 16] there and [3, 20] in the job's model: it is an "
            "adapter of another base model; set model.path to that model",
        ),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    trained: tuple[Runs, Path], changes: dict[str, Any], config: dict[str, Any], said: str
) -> None:
    from transformers import AutoConfig

    from zerotoolsd.trainer.engine.load_adapter import read_adapter
    from zerotoolsd.trainer.model.meta_model import make_meta_model

    tree = {**json.loads((MODEL / "config.json").read_text()), **config}
    if config:
        del tree["head_dim"]
    keys = {**LORA, **changes}
    spec = LoraSpec(
        rank=keys["rank"],
        alpha=keys["alpha"],
        target_modules=tuple(keys["target_modules"]),
        path=str(trained[1]),
    )
    model = make_meta_model(AutoConfig.for_model(**tree), spec).model
    with pytest.raises(BadRequest) as error:
        read_adapter(spec, model)
    assert str(error.value).startswith(f"lora.path = {trained[1]}: ")
    assert said in str(error.value)


def test_a_directory_without_an_adapter_is_refused(tmp_path: Path) -> None:
    from transformers import AutoConfig

    from zerotoolsd.trainer.engine.load_adapter import read_adapter
    from zerotoolsd.trainer.model.meta_model import make_meta_model

    shutil.copy(MODEL / "model.safetensors", tmp_path)
    spec = LoraSpec(rank=3, path=str(tmp_path))
    model = make_meta_model(AutoConfig.from_pretrained(MODEL), spec).model
    with pytest.raises(BadRequest, match=r"adapter_config\.json cannot be read"):
        read_adapter(spec, model)
