from pathlib import Path

import pytest

from tests.jobs.imports.jobs import a_job
from tests.jobs.imports.programs.told import key, of, rows
from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.combine_configs import Imported, import_configs
from zerotools.jobs.imports.programs.axolotl import read_axolotl
from zerotools.jobs.text.config_document import Document
from zerotools.jobs.text.json_parser import parse_json
from zerotools.jobs.text.yaml_parser import parse_yaml

CONFIG = """
base_model: {root}/model
model_type: LlamaForCausalLM
tokenizer_type: AutoTokenizer
load_in_8bit: false
load_in_4bit: false
strict: false

datasets:
  - path: {root}/a.jsonl
    type: alpaca
dataset_prepared_path:
val_set_size: 0.05
output_dir: {root}/out

sequence_len: 4096
sample_packing: true
pad_to_sequence_len: true

adapter: lora
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true

wandb_project:
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 4
optimizer: adamw_torch
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
tf32: false
gradient_checkpointing: true
flash_attention: true
warmup_steps: 10
evals_per_epoch: 4
saves_per_epoch: 1
weight_decay: 0.0
special_tokens:
  pad_token: "<|end_of_text|>"
"""


def imported(root: Path, text: str = CONFIG) -> Imported:
    (root / "model").mkdir(exist_ok=True)
    (root / "model" / "config.json").write_text('{"model_type": "llama"}')
    document = parse_yaml(text.replace("{root}", str(root)), source="x.yml")
    return of(read_axolotl(document, root))


def test_a_config_of_the_project_is_a_job(tmp_path: Path) -> None:
    job = imported(tmp_path)
    assert key(job, "data.examples") == [str(tmp_path / "a.jsonl")]
    assert key(job, "data.format") == "alpaca"
    assert key(job, "data.packing") is True
    assert key(job, "data.sequence_length") == 4096
    assert (key(job, "lora.rank"), key(job, "lora.alpha")) == (32, 16)
    assert len(key(job, "lora.target_modules")) == 7
    assert (key(job, "train.epochs"), key(job, "train.batch_size")) == (4, 8)
    assert key(job, "train.precision") == "bf16"
    assert key(job, "eval.fraction") == 0.05
    assert key(job, "train.warmup_steps") == 10
    assert "checkpoint.every" in rows(job, "ignored")["saves_per_epoch"]
    assert not rows(job, "unknown")


def test_qlora_keeps_the_frozen_weights_in_4_bits(tmp_path: Path) -> None:
    text = CONFIG.replace("adapter: lora", "adapter: qlora")
    job = imported(tmp_path, text.replace("load_in_4bit: false", "load_in_4bit: true"))
    assert (key(job, "lora.rank"), key(job, "lora.frozen_precision")) == (32, "nf4")
    assert key(job, "lora.double_quant") is True
    assert "are not quantised" in rows(imported(tmp_path), "ignored")["load_in_4bit"]


OPTIONS = """bnb_config_kwargs:
  llm_int8_has_fp16_weight: false
  bnb_4bit_quant_type: nf4
  bnb_4bit_use_double_quant: false
"""


def test_options_of_bitsandbytes_are_read_from_their_table(tmp_path: Path) -> None:
    text = CONFIG.replace("adapter: lora", "adapter: qlora") + OPTIONS
    text = text.replace("load_in_4bit: false", "load_in_4bit: true")
    job = imported(tmp_path, text)
    assert key(job, "lora.double_quant") is False
    assert not rows(job, "unknown")
    assert "8 bits" in rows(job, "ignored")["bnb_config_kwargs.llm_int8_has_fp16_weight"]
    other = imported(tmp_path, text.replace("quant_type: nf4", "quant_type: fp4"))
    assert 'bnb_config_kwargs.bnb_4bit_quant_type = "fp4": is not supported' in str(other.problem)
    twice = imported(tmp_path, text + "bnb_4bit_quant_type: nf4\n")
    assert "say the same; remove one of them" in str(twice.problem)
    flat = imported(tmp_path, text.replace(OPTIONS, "bnb_config_kwargs: nf4\n"))
    assert "must be a table" in str(flat.problem)


def test_weights_of_4_bits_without_adapters_are_refused(tmp_path: Path) -> None:
    text = CONFIG.replace("adapter: lora", "adapter:")
    text = text.replace("load_in_4bit: false", "load_in_4bit: true")
    assert "cannot be trained without adapters" in str(imported(tmp_path, text).problem)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("adapter: lora", "adapter: dora", "supported: lora, qlora"),
        ("adapter: lora", "adapter: qlora", "needs load_in_4bit: true, as axolotl itself does"),
        ("load_in_8bit: false", "load_in_8bit: true", "does not support this yet"),
        ("type: alpaca", "type: input_output", 'type = "input_output": is not supported'),
        ("strict: false", "neftune_noise_alpha: 5", "does not support this yet"),
        ("strict: false", "rl: kto", "is not supported; supported: dpo"),
        ("optimizer: adamw_torch", "optimizer: lion_8bit", "is not supported"),
    ],
)
def test_what_a_job_cannot_have_is_refused(tmp_path: Path, old: str, new: str, why: str) -> None:
    assert why in str(imported(tmp_path, CONFIG.replace(old, new)).problem)


def test_ranks_that_share_sequences_and_layers_have_one_micro_batch(tmp_path: Path) -> None:
    sizes = "context_parallel_size: 2\ntensor_parallel_size: 2\ndeepspeed: ds.json\n"
    document = parse_yaml((CONFIG + sizes).replace("{root}", str(tmp_path)), source="x.yml")
    imported(tmp_path)
    run = read_axolotl(document, tmp_path)
    config = parse_json('{"zero_optimization": {"stage": 3}}', source="ds.json")
    job = import_configs(a_job("gpus = 8\n"), run=run, deepspeed=config)
    assert (key(job, "zero.sequence_ranks"), key(job, "zero.tensor_ranks")) == (2, 2)
    assert key(job, "train.batch_size") == 2 * 4 * 8 // 4
    assert not rows(job, "unknown")


def test_a_size_that_does_not_divide_the_ranks_is_named_by_its_place(tmp_path: Path) -> None:
    said = str(imported(tmp_path, CONFIG + "sequence_parallel_degree: 2\n").problem)
    assert "sequence_parallel_degree) = 2: must divide the 1 rank" in said
    both = "sequence_parallel_degree: 2\ncontext_parallel_size: 2\n"
    assert "say the same; remove one of them" in str(imported(tmp_path, CONFIG + both).problem)


@pytest.mark.parametrize(
    ("written", "key_of", "value"),
    [
        ("", "train.warmup_ratio", 0.03),
        ("max_steps: 1000", "train.warmup_steps", 30),
        ("max_steps: 9000", "train.warmup_steps", 100),
        ("warmup_ratio: 0.1", "train.warmup_ratio", 0.1),
    ],
)
def test_a_warm_up_that_is_not_written_is_axolotls(
    tmp_path: Path, written: str, key_of: str, value: float
) -> None:
    job = imported(tmp_path, CONFIG.replace("warmup_steps: 10", written))
    assert key(job, key_of) == value
    longer = "warm-up: 3 % of all steps" in "".join(job.findings.differences)
    assert longer == (not written)


def test_the_scheduler_of_deepspeed_has_its_own_warm_up(tmp_path: Path) -> None:
    text = CONFIG.replace("warmup_steps: 10", "").replace("lora_target_linear: true", "")
    scheduler = {"type": "WarmupLR", "params": {"warmup_num_steps": 7, "warmup_type": "linear"}}
    document = parse_yaml(text.replace("{root}", str(tmp_path)), source="x.yml")
    run = read_axolotl(document, tmp_path)
    deepspeed = Document("ds.json", {"scheduler": scheduler, "zero_optimization": {"stage": 2}}, {})
    job = import_configs(None, run=run, deepspeed=deepspeed)
    assert key(job, "train.warmup_steps") == 7
    assert key(job, "train.warmup_ratio") is None


def test_what_axolotl_does_otherwise_is_said(tmp_path: Path) -> None:
    said = "; ".join(imported(tmp_path, CONFIG + "train_on_inputs: true\n").findings.differences)
    assert "loss: only on responses, never on prompts" in said
    assert "axolotl cannot read them" in said


def test_plain_text_and_a_floor_of_the_cosine(tmp_path: Path) -> None:
    text = CONFIG.replace("type: alpaca", "type: completion") + "cosine_min_lr_ratio: 0.1\n"
    job = imported(tmp_path, text.replace("sample_packing: true", "sample_packing: false"))
    assert key(job, "data.text") == [str(tmp_path / "a.jsonl")]
    assert key(job, "train.min_learning_rate") == pytest.approx(2e-5)


def test_datasets_of_two_forms_are_refused(tmp_path: Path) -> None:
    more = "  - path: b.json\n    type: chat_template\ndataset_prepared_path:"
    job = imported(tmp_path, CONFIG.replace("dataset_prepared_path:", more))
    assert 'of the forms "alpaca", "messages"' in str(job.problem)


def test_what_a_dataset_says_besides_is_listed(tmp_path: Path) -> None:
    more = "type: alpaca\n    split: train\n    shards: 2\n  - path: some/where\n    type: alpaca"
    job = imported(tmp_path, CONFIG.replace("type: alpaca", more))
    assert "datasets.shards" in rows(job, "unknown")
    assert "datasets.split" not in rows(job, "unknown")
    assert "data.examples" in job.missing


def test_data_of_a_hub_is_missing(tmp_path: Path) -> None:
    job = imported(tmp_path, CONFIG.replace("{root}/a.jsonl", "tatsu-lab/alpaca"))
    assert "data.examples" in job.missing
    assert "downloads no data" in rows(job, "ignored")["datasets"]


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"LLaMA-Factory's config, use --llamafactory"):
        imported(tmp_path, "model_name_or_path: m\n")


PAIRS = CONFIG.replace("type: alpaca", "type: {type}").replace(
    "strict: false", "rl: dpo\nrl_beta: 0.2"
)


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("chatml.intel", ("question", "chosen", "rejected")),
        ("llama3.argilla", ("instruction", "chosen_response", "rejected_response")),
        ("chatml.prompt_pairs", ("prompt", "chosen", "rejected")),
        ("chat_template.default", ("messages", "chosen", "rejected")),
        ("chat_template.default\n    field_chosen: good", ("messages", "good", "rejected")),
        ("{{field_prompt: q, field_rejected: bad}}", ("q", "chosen", "bad")),
    ],
)
def test_preferences_have_the_columns_of_their_type(
    kind: str, columns: tuple[str, str, str], tmp_path: Path
) -> None:
    job = imported(tmp_path, PAIRS.replace("{type}", kind.replace("{{", "{").replace("}}", "}")))
    assert key(job, "data.preferences") == [str(tmp_path / "a.jsonl")]
    assert key(job, "dpo.beta") == 0.2
    names = ("prompt_column", "chosen_column", "rejected_column")
    found = [key(job, f"data.{name}") for name in names]
    usual = ("prompt", "chosen", "rejected")
    assert tuple(mine or own for mine, own in zip(found, usual, strict=True)) == columns


@pytest.mark.parametrize("kind", ["chatml.ultra", "zephyr.nectar", "{prompt_format: '[{prompt}]'}"])
def test_preferences_of_other_types_are_refused(kind: str, tmp_path: Path) -> None:
    problem = imported(tmp_path, PAIRS.replace("{type}", kind)).problem
    assert "is not supported; the supported types end with argilla, icr" in str(problem)
