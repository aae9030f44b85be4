"""Programs with defaults of their own: scripts with the structure of those in their repositories.

None is a copy: paths, numbers and order are our own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs.imports.programs.test_public_scripts import Script, check
from tests.jobs.imports.programs.told import of
from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.programs.read_launch_line import read_launch
from zerotools.jobs.imports.programs.run_settings import Program
from zerotools.jobs.imports.reading.look_up_job_keys import look_up
from zerotools.jobs.launcher_keys.trainer_keys import ALL_LINEAR

SCRIPTS = {
    "medicalgpt, adapters on directories of conversations": Script(
        "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 src/supervised_finetuning.py \\\n"
        "    --model_name_or_path owner/Qwen2.5-1.5B --train_file_dir ./chats \\\n"
        "    --validation_file_dir held --per_device_train_batch_size 2 --do_train --do_eval \\\n"
        "    --use_peft True --max_train_samples 900 --model_max_length 2048 \\\n"
        "    --num_train_epochs 2 --learning_rate 3e-5 --eval_steps 40 --eval_strategy steps \\\n"
        "    --gradient_accumulation_steps 3 --output_dir out --target_modules all \\\n"
        "    --lora_rank 4 --torch_dtype bfloat16 --bf16 --device_map auto --template_name qwen\n",
        {
            "gpus": 2,
            "train.batch_size": 12,
            "train.epochs": 2,
            "data.sequence_length": 2048,
            "lora.rank": 4,
            "lora.alpha": 32,
            "lora.target_modules": ALL_LINEAR["qwen2"],
            "eval.every": 40,
        },
    ),
    "medicalgpt, all weights with DeepSpeed and noise": Script(
        "torchrun --nproc_per_node 8 supervised_finetuning.py --model_name_or_path o/base \\\n"
        "    --train_file_dir d --use_peft False --output_dir out --neft_alpha 8 --bf16\n",
        problems=('--neft_alpha = "8": the engine torch does not support this yet',),
    ),
    "medicalgpt, pretraining on text": Script(
        "torchrun --nproc_per_node 2 training/pretraining.py --model_name_or_path o/Llama-2-7b \\\n"
        "    --train_file_dir books --per_device_train_batch_size 3 --use_peft True \\\n"
        "    --num_train_epochs 0.5 --block_size 256 --packing True --qlora True --do_train \\\n"
        "    --output_dir out --bf16\n",
        {
            "train.epochs": 0.5,
            "data.sequence_length": 256,
            "data.packing": None,
            "lora.frozen_precision": "nf4",
        },
    ),
    "medicalgpt, preferences": Script(
        "CUDA_VISIBLE_DEVICES=0,1 python training/dpo_training.py --model_name_or_path o/base \\\n"
        "    --train_file_dir ./pairs --validation_file_dir ./pairs --weight_decay 0.3 \\\n"
        "    --max_source_length 300 --output_dir out --bf16 True --fp16 False --do_train\n",
        {
            "gpus": 1,
            "data.prompt_column": "question",
            "data.chosen_column": "response_chosen",
            "data.rejected_column": "response_rejected",
            "data.max_source_length": 300,
            "data.max_target_length": 512,
            "train.steps": 200,
            "train.batch_size": 16,
            "train.weight_decay": 0.0,
            "train.schedule": "cosine",
            "checkpoint.every": 50,
        },
    ),
    "trl, its console program with defaults": Script(
        "trl sft --model_name_or_path owner/base --dataset_name owner/chats --output_dir out\n",
        {
            "gpus": None,
            "train.learning_rate": 2e-5,
            "train.precision": "bf16",
            "train.epochs": 3.0,
            "data.sequence_length": 1024,
        },
        steps=("hf download owner/base", "hf download --repo-type dataset owner/chats"),
    ),
    "trl, preferences with a preset and fewer ranks": Script(
        "export CUDA_VISIBLE_DEVICES=0,1,2\ntrl dpo \\\n  --model_name_or_path owner/base \\\n"
        "  --dataset_name owner/pairs --beta 0.3 --learning_rate 5.0e-7 \\\n"
        "  --per_device_train_batch_size 2 --gradient_accumulation_steps 8 \\\n"
        "  --accelerate_config zero3 --num_processes 3 --output_dir out \\\n"
        "  --use_peft --lora_r 32\n",
        {
            "gpus": 3,
            "zero.stage": 3,
            "train.batch_size": 48,
            "dpo.beta": 0.3,
            "lora.rank": 32,
            "lora.alpha": 32,
        },
    ),
    "trl, settings and ranks in its YAML": Script(
        "trl sft --config trl.yaml --learning_rate 3e-6 --output_dir out\n",
        {"gpus": 2, "zero.stage": 2, "train.learning_rate": 3e-6, "train.schedule": "cosine"},
    ),
    "trl, one card": Script(
        "trl sft --model_name_or_path o/b --dataset_name o/d --accelerate_config=single_gpu\n",
        {"gpus": 1, "zero.stage": None},
    ),
    "trl, FSDP": Script(
        "trl sft --model_name_or_path o/b --dataset_name o/d --accelerate_config fsdp2\n",
        {"gpus": 8, "zero.stage": 3},
    ),
    "trl, answers with rewards": Script(
        "trl grpo --model_name_or_path o/b --dataset_name o/d --reward_funcs f\n",
        problems=("the arguments of trl.scripts.grpo are not read; run the program with --as",),
    ),
}

TRL_YAML = """model_name_or_path: owner/base
dataset_name: owner/chats
lr_scheduler_type: cosine
accelerate_config: zero2
num_processes: 2
"""


LINE = "trl sft --model_name_or_path o/b --dataset_name o/d --output_dir out"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_a_known_program_has_its_defaults(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    Path("trl.yaml").write_text(TRL_YAML)
    check(SCRIPTS[name])


def program(line: str) -> Program:
    found = read_launch(line, "run.sh", Path(), lines=True).program
    assert found is not None
    return found


def test_its_ranks_are_started_by_accelerate_with_the_options_of_a_preset() -> None:
    found = program(f"{LINE} --accelerate_config zero2 --main_process_port 29501 --num_processes=3")
    assert found.launcher == "accelerate"
    assert found.options == ("--use_deepspeed", "--zero_stage=2")
    assert found.command[:2] == ("-m", "trl.scripts.sft")
    assert not {"--accelerate_config", "zero2", "29501"} & set(found.command)


def test_a_file_of_accelerate_is_named_to_it(tmp_path: Path) -> None:
    run = read_launch(f"{LINE} --accelerate_config my.yaml", "run.sh", tmp_path, lines=True)
    assert run.accelerate_file is not None
    assert run.accelerate_file.value == "my.yaml"
    assert run.accelerate_file.title == "--accelerate_config"


def test_the_file_of_its_arguments_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "settings").mkdir()
    run = read_launch(f"{LINE} --config settings", "run.sh", tmp_path, lines=True)
    assert any("--config" in each and "director" in each for each in run.findings.wrong)


@pytest.mark.parametrize("value", ["$N", "zero3"])
def test_what_only_a_shell_knows_is_named(value: str) -> None:
    line = f"{LINE} --accelerate_config {value} --num_processes $N"
    assert "--num_processes: $N" in str(of(read_launch(line, "run.sh", Path(), lines=True)).problem)


def test_an_option_at_the_end_without_a_value_is_no_preset() -> None:
    found = of(read_launch(f"{LINE} --accelerate_config", "run.sh", Path(), lines=True))
    assert look_up(found.tree, "zero.stage") == 0


def test_its_other_commands_train_nothing() -> None:
    with pytest.raises(BadRequest, match="has no launch line"):
        read_launch("trl vllm-serve --model o/b", "run.sh", Path(), lines=True)
