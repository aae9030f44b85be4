import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.imports.programs.told import key, of, rows
from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.combine_configs import Imported
from zerotools.jobs.imports.programs.llamafactory import read_llamafactory
from zerotools.jobs.text.yaml_parser import parse_yaml

SFT = """
### model
model_name_or_path: {root}/model
trust_remote_code: true

### method
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
deepspeed: examples/deepspeed/ds_z3_config.json

### dataset
dataset: mine,chats
dataset_dir: {root}
template: llama3
cutoff_len: 1024
max_samples: 1000

### output
output_dir: {root}/out
logging_steps: 10
save_steps: 500
plot_loss: true

### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000

### eval
val_size: 0.1
eval_strategy: steps
eval_steps: 500
"""
REGISTER: dict[str, Any] = {
    "mine": {"file_name": "a.json"},
    "chats": {"file_name": "b.json"},
    "talk": {
        "file_name": "c.json",
        "formatting": "sharegpt",
        "columns": {"messages": "conversations"},
    },
    "other": {"file_name": "d.json", "columns": {"prompt": "question", "response": "answer"}},
    "far": {"hf_hub_url": "some/where"},
    "pairs": {
        "file_name": "p.json",
        "ranking": True,
        "columns": {"prompt": "question", "chosen": "good", "rejected": "bad"},
    },
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "dataset_info.json").write_text(json.dumps(REGISTER))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    return tmp_path


def imported(root: Path, text: str = SFT) -> Imported:
    document = parse_yaml(text.replace("{root}", str(root)), source="x.yaml")
    return of(read_llamafactory(document, root))


def test_a_recipe_of_the_project_is_a_job(root: Path) -> None:
    job = imported(root)
    assert key(job, "model.path") == str(root / "model")
    assert key(job, "data.examples") == [str(root / "a.json"), str(root / "b.json")]
    assert key(job, "data.format") == "alpaca"
    assert key(job, "data.sequence_length") == 1024
    assert key(job, "lora.rank") == 8
    assert "down_proj" in key(job, "lora.target_modules")
    assert key(job, "eval.fraction") == 0.1
    assert key(job, "eval.every") == 500
    assert key(job, "train.warmup_ratio") == 0.1
    assert (key(job, "train.batch_size"), key(job, "train.precision")) == (8, "bf16")
    assert "template of the tokenizer" in rows(job, "ignored")["template"]
    assert not rows(job, "unknown")
    said = "data: all of it; LLaMA-Factory reads at most 1000 examples of a file"
    assert said in job.findings.differences


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("talk", {"data.format": "messages", "data.messages_column": "conversations"}),
        ("other", {"data.format": "columns", "data.prompt_column": "question"}),
    ],
)
def test_the_register_says_what_an_example_is(root: Path, name: str, keys: dict[str, str]) -> None:
    job = imported(root, SFT.replace("mine,chats", name))
    assert {each: key(job, each) for each in keys} == keys


@pytest.mark.parametrize(
    ("said", "double"),
    [("", True), ("double_quantization: false\nquantization_type: nf4\n", False)],
)
def test_4_bits_are_qlora(root: Path, said: str, double: bool) -> None:
    job = imported(root, f"{SFT}\nquantization_bit: 4\nquantization_method: bnb\n{said}")
    assert key(job, "lora.frozen_precision") == "nf4"
    assert key(job, "lora.double_quant") is double
    assert not rows(job, "unknown")


def test_packing_and_the_last_answer_have_other_names(root: Path) -> None:
    job = imported(root, SFT + "neat_packing: true\nmask_history: true\n")
    assert (key(job, "data.packing"), key(job, "data.loss_on")) == (True, "last")


def test_data_of_which_a_part_is_on_a_hub_is_missing(root: Path) -> None:
    assert "data.examples" in imported(root, SFT.replace("mine,chats", "mine,far")).missing


def test_preferences_are_learned_from_by_dpo(root: Path) -> None:
    pairs = SFT.replace("mine,chats", "pairs")
    dpo = pairs.replace("stage: sft", "stage: dpo\npref_beta: 0.2\npref_loss: sigmoid")
    job = imported(root, dpo)
    assert job.problem is None
    assert key(job, "data.preferences") == [str(root / "p.json")]
    columns = [key(job, f"data.{name}_column") for name in ("prompt", "chosen", "rejected")]
    assert columns == ["question", "good", "bad"]
    assert (key(job, "dpo.beta"), key(job, "data.sequence_length")) == (0.2, 1024)
    assert "pairs has pairs of answers, but stage is not dpo" in str(imported(root, pairs).problem)
    mixed = dpo.replace("dataset: pairs", "dataset: pairs,mine")
    assert "mine has single answers, but stage is dpo" in str(imported(root, mixed).problem)
    other = dpo.replace("sigmoid", "orpo")
    assert "supported: sigmoid" in str(imported(root, other).problem)


def test_data_of_a_hub_is_missing(root: Path) -> None:
    job = imported(root, SFT.replace("mine,chats", "far"))
    assert "data.examples" in job.missing
    assert "is not downloaded" in rows(job, "ignored")["dataset"]


def test_a_newer_key_is_listed(root: Path) -> None:
    assert "use_teleport" in rows(imported(root, SFT + "use_teleport: 3\n"), "unknown")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("stage: sft", "stage: kto", "supported: sft, pt, dpo"),
        ("finetuning_type: lora", "finetuning_type: freeze", "supported: full, lora"),
        ("dataset: mine,chats", "dataset: nobody", "has no dataset nobody"),
        ("bf16: true", "quantization_bit: 8", "is not supported; supported: 4"),
        ("bf16: true", "quantization_bit: 4\nquantization_method: hqq", "supported: bnb"),
        ("bf16: true", "pure_bf16: true", "does not support this yet"),
        ("bf16: true", "neftune_noise_alpha: 5", "does not support this yet"),
        ("cutoff_len: 1024", "cutoff_len: 1\nsequence_length: 2", "say the same"),
        ("dataset: mine,chats", "dataset: mine,talk", "a job reads one"),
    ],
)
def test_what_a_job_cannot_have_is_refused(root: Path, old: str, new: str, why: str) -> None:
    assert why in str(imported(root, SFT.replace(old, new)).problem)


def test_a_file_of_another_program_is_refused(root: Path) -> None:
    with pytest.raises(BadRequest, match=r"axolotl's config, use --axolotl"):
        imported(root, "base_model: m\n")
    with pytest.raises(BadRequest, match=r"is it a config of LLaMA-Factory\?"):
        imported(root, "a: 1\n")


def test_full_training_has_no_adapters(root: Path) -> None:
    job = imported(root, SFT.replace("finetuning_type: lora", "finetuning_type: full"))
    assert key(job, "lora.rank") is None
