import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.imports.programs.told import key, of, of_line, rows
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.jobs.imports.programs.read_launch_line import read_launch
from zerotools.jobs.text.yaml_parser import parse_yaml

TRAINER = "--output_dir out --model_name_or_path m --train_file a.txt"


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("deepspeed --num_gpus 2 x.py", 2),
        ("deepspeed --num_gpus=2 x.py", 2),
        ("deepspeed --include localhost:0,1,5 x.py", 3),
        ("CUDA_VISIBLE_DEVICES=0,1 deepspeed x.py", 2),
        ("export CUDA_VISIBLE_DEVICES=0,1,2\ndeepspeed x.py", 3),
        ("torchrun --nproc_per_node 4 x.py", 4),
        ("torchrun --nproc-per-node=4 --standalone x.py", 4),
        ("torchrun x.py", 1),
        ("python -m torch.distributed.launch --nproc_per_node=8 --use_env x.py", 8),
        ("python -m torch.distributed.run --nproc_per_node=8 -m pkg.train", 8),
        ("nohup python3.11 -u x.py", 1),
        ("uv run accelerate launch --num_processes 2 x.py", 2),
        ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch x.py", 2),
        ("N=3; torchrun --nproc_per_node $N x.py", 3),
    ],
)
def test_ranks_are_those_that_the_launcher_starts(line: str, gpus: int) -> None:
    assert key(of_line(f"{line} {TRAINER} --per_device_train_batch_size 4"), "gpus") == gpus
    assert key(of_line(f"{line} {TRAINER}"), "train.batch_size") == 8 * gpus


@pytest.mark.parametrize("line", ["deepspeed x.py", "torchrun --nproc_per_node gpu x.py"])
def test_a_launcher_that_takes_every_gpu_is_said(line: str) -> None:
    imported = of_line(f"{line} {TRAINER}")
    assert key(imported, "gpus") is None
    assert "uses every GPU, but the job has one rank" in rows(imported, "default")["ranks"]


BEST = "--validation_file v.txt --eval_strategy steps --eval_steps 20 --load_best_model_at_end"
ARGUMENTS: list[tuple[str, str, Any]] = [
    ("--learning_rate 1e-4", "train.learning_rate", 1e-4),
    ("--learning-rate=1e-4", "train.learning_rate", 1e-4),
    ("--max_steps 50", "train.steps", 50),
    ("--max_steps -1 --num_train_epochs 2", "train.epochs", 2.0),
    ("", "train.epochs", 3.0),
    ("--bf16", "train.precision", "bf16"),
    ("--fp16 True --bf16 false", "train.precision", "fp16"),
    ("", "train.precision", "fp32"),
    ("--gradient_accumulation_steps 4", "train.batch_size", 32),
    ("--gradient_checkpointing", "train.activation_checkpointing", True),
    ("--lr_scheduler_type cosine", "train.schedule", "cosine"),
    ("--lr_scheduler_type constant --warmup_steps 10", "train.warmup_steps", 0),
    ("--max_steps 50 --warmup_ratio 0.03", "train.warmup_steps", 2),
    ("--warmup_ratio 0.03", "train.warmup_ratio", 0.03),
    ("--warmup_steps 0.1", "train.warmup_ratio", 0.1),
    ("--warmup_steps 7 --warmup_ratio 0.5", "train.warmup_steps", 7),
    ("--adam_beta2 0.95", "train.betas", [0.9, 0.95]),
    ("--optim adafactor", "train.optimizer", "adafactor"),
    ("--optim adamw_torch_fused", "train.optimizer", "adamw"),
    ("--optim sgd", "train.momentum", 0.0),
    ("--activation_checkpointing", "train.activation_checkpointing", True),
    ("--save_steps 100", "checkpoint.every", 100),
    ("--save_strategy epoch", "checkpoint.every", None),
    ("--save_steps 0.1 --max_steps 25", "checkpoint.every", 3),
    ("--save_steps 0.1", "checkpoint.every", None),
    ("--save_steps 1.5", "checkpoint.every", None),
    (
        "--validation_file v.txt --eval_strategy steps --eval_steps 0.5 --max_steps 9",
        "eval.every",
        5,
    ),
    ("", "checkpoint.every", 500),
    ("--save_total_limit 2", "checkpoint.keep_last", 2),
    ("", "zero.stage", 0),
    ("--fsdp 'full_shard auto_wrap'", "zero.stage", 3),
    ("--fsdp 'shard_grad_op offload'", "offload.optimizer", "cpu"),
    ("--fsdp 'full_shard offload'", "offload.params", "cpu"),
    ("--zero_stage 2", "zero.stage", 2),
    ("--block_size 128", "data.sequence_length", 128),
    ("--validation_file v.txt --eval_strategy steps --eval_steps 20", "eval.every", 20),
    ("--validation_file v.txt --eval_strategy steps --logging_steps 7", "eval.every", 7),
    ("--validation_file v.txt --eval_strategy steps", "eval.every", 500),
    ("--validation_file v.txt --logging_steps 7", "eval.every", None),
    (f"{BEST} --save_steps 40", "checkpoint.best", "eval_loss"),
    (f"{BEST} --save_steps 40 --metric_for_best_model eval_loss", "checkpoint.best", "eval_loss"),
    (f"{BEST} --save_steps 40 --metric_for_best_model accuracy", "checkpoint.best", None),
    (f"{BEST} --save_steps 30", "checkpoint.best", None),
    (f"{BEST} False", "checkpoint.best", None),
    ("--load_best_model_at_end", "checkpoint.best", None),
    ("--per_device_eval_batch_size 3", "eval.batch_size", None),
    ("--lora_rank 16 --lora_alpha 32", "lora.rank", 16),
    ("--use_lora True --lora_target_modules q_proj v_proj", "lora.target_modules", None),
    ("--use_lora False --lora_rank 16", "lora.rank", None),
    ("--torch_compile", "train.compile", True),
    ("--seed 7", "seed", 7),
    ("", "seed", 42),
    ("--no_cuda", "device", "cpu"),
]


@pytest.mark.parametrize(("given", "name", "value"), ARGUMENTS)
def test_an_argument_of_the_trainer_is_a_key_of_the_job(given: str, name: str, value: Any) -> None:
    found = key(of_line(f"python x.py {TRAINER} {given}"), name)
    if name == "lora.target_modules":
        assert list(found) == ["q_proj", "v_proj"]
    else:
        assert found == (pytest.approx(value) if isinstance(value, (float, list)) else value)


def test_arguments_in_a_variable_are_arguments() -> None:
    text = f"ARGS='{TRAINER} --seed 7'\nD='--nproc_per_node 2'\ntorchrun $D x.py $ARGS \"$@\""
    imported = of_line(text)
    assert (key(imported, "seed"), key(imported, "gpus")) == (7, 2)
    assert " of the script; if it gets any," in rows(imported, "unknown")["$@"]


@pytest.mark.parametrize(
    ("columns", "keys"),
    [
        ("--text_column body", {"data.text_column": "body"}),
        (
            "--text_column a --summary_column b",
            {"data.prompt_column": "a", "data.response_column": "b"},
        ),
        (
            "--prompt_column p --response_column r --input_column i",
            {"data.prompt_column": "p", "data.input_column": "i"},
        ),
    ],
)
def test_columns_mean_what_they_mean_to_the_program(columns: str, keys: dict[str, str]) -> None:
    imported = of_line(f"python x.py {TRAINER} {columns}")
    assert {name: key(imported, name) for name in keys} == keys


def test_a_test_file_beside_a_validation_file_is_listed() -> None:
    imported = of_line(f"python x.py {TRAINER} --validation_file v.txt --test_file t.txt")
    assert [Path(each).name for each in key(imported, "eval.files")] == ["v.txt"]
    assert "--test_file" in rows(imported, "ignored")


def test_a_program_that_is_not_the_trainers_has_no_defaults_of_it() -> None:
    line = "deepspeed --num_gpus 2 main.py --deepspeed_config ds.json --learning_rate 1e-4"
    run = read_launch(line, "run.sh", Path(), lines=False)
    assert (run.deepspeed and run.deepspeed.value) == "ds.json"
    imported = of(run)
    assert key(imported, "train.epochs") is None
    assert key(imported, "seed") is None
    assert set(imported.missing) >= {"model.path", "data.text", "train.steps"}


def test_a_program_of_the_trainer_is_known_by_an_argument_whose_value_is_not() -> None:
    line = "torchrun x.py --output_dir out-$(date) --learning_rate 1e-4"
    run = read_launch(line, "run.sh", Path(), lines=False)
    assert "output_dir" not in run.given
    assert key(of(run), "train.epochs") == 3
    assert key(of(run), "train.batch_size") == 8


def test_the_last_of_two_equal_arguments_counts() -> None:
    imported = of_line(f"python x.py {TRAINER} --seed 1 --seed 2")
    assert key(imported, "seed") == 2
    assert "is given again in the line" in rows(imported, "ignored")["--seed"]
    of_launcher = of_line(f"deepspeed --num_gpus 2 --num_gpus 4 x.py {TRAINER}")
    assert key(of_launcher, "gpus") == 4
    assert "is given again in the line" in rows(of_launcher, "ignored")["--num_gpus"]


def test_what_is_unknown_is_listed_and_nothing_else_is_lost() -> None:
    line = f"NCCL_P2P_DISABLE=1 deepspeed --num_gpus 1 --speed x x.py here {TRAINER} --mine 3"
    imported = of_line(line)
    assert set(rows(imported, "unknown")) == {"--speed", "here", "--mine"}
    assert "[env]" in rows(imported, "ignored")["NCCL_P2P_DISABLE"]
    listed = {row.key for row in imported.findings.rows}
    assert {"--output_dir", "--model_name_or_path", "--train_file", "--num_gpus"} <= listed


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "has no launch line"),
        ("pip install deepspeed", "has no launch line"),
        ("deepspeed --num_gpus 2", "no program"),
        (
            "deepspeed a.py\ntorchrun b.py",
            r"2 launch lines; .*--block N:\n  1  line 1: deepspeed a\.py\n  2  ",
        ),
        ("deepspeed a.py --lr \\ # rate\n  --b 2", r"run\.sh:2: from --b on, .*line 1"),
        ("python x.py --lr '1", "the quote ' is not closed"),
        ("cd x\nbash scripts/train.sh 4", r"line 2 runs scripts/train\.sh; give that script"),
    ],
)
def test_a_line_that_says_no_job_is_refused(line: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        of_line(line, lines=True)


@pytest.mark.parametrize(
    ("line", "kind", "why"),
    [
        ("python x.py --lr $LR", BadRequest, r"run\.sh:1: --lr: \$LR is not set"),
        ("deepspeed x.py $ARGS", BadRequest, r"an argument of the program: \$ARGS is not set"),
        ("torchrun $OPTIONS x.py", BadRequest, r"torchrun: \$OPTIONS is not set"),
        ("torchrun --nproc_per_node=$N x.py", BadRequest, r"--nproc_per_node: \$N is not set"),
        ("llamafactory-cli train x.yaml", BadRequest, r"run\.sh:1: x\.yaml: there is no such"),
        ("accelerate launch -m axolotl.cli.train x.yml", BadRequest, r"x\.yml: there is no such"),
        ("python -m axolotl.cli.train x.yml", BadRequest, r"x\.yml: there is no such"),
        ("axolotl train", Unsupported, "names no YAML file with the settings of axolotl"),
        ("xtuner train a_config --work-dir w", Unsupported, "the settings of xtuner are Python"),
        ("swift rlhf --rlhf_type dpo", Unsupported, "rewards or preferences"),
        ("deepspeed --module openrlhf.cli.train_sft", Unsupported, "with --as script"),
    ],
)
def test_a_line_of_which_the_job_is_not_known_is_a_problem(
    line: str, kind: type[Exception], why: str
) -> None:
    imported = of_line(line, lines=True)
    assert isinstance(imported.problem, kind)
    assert re.search(why, str(imported.problem)), str(imported.problem)


@pytest.mark.parametrize(
    ("given", "kind", "why"),
    [
        ("--learning_rate fast", BadRequest, r'--learning_rate = "fast": must be a number'),
        ("--bf16 --fp16", BadRequest, "are both on"),
        ("--warmup_ratio 3", BadRequest, "must be between 0 and 1"),
        ("--per_device_train_batch_size 0", BadRequest, "must be at least 1"),
        ("--optim lion_8bit", Unsupported, "lion_8bit.* is not supported"),
        ("--lr_scheduler_type polynomial", Unsupported, "supported: linear"),
        ("--load_in_4bit", Unsupported, "trained without adapters; add adapters"),
        ("--use_lora --bits 8", Unsupported, "bits = 8: is not supported; supported: 4"),
        (
            "--use_peft --load_in_4bit --bnb_4bit_quant_type fp4",
            Unsupported,
            '"fp4": is not supported; supported: nf4',
        ),
        ("--use_peft --load_in_8bit", Unsupported, "does not support this yet"),
        ("--label_smoothing_factor 0.1", Unsupported, "does not support this yet"),
        ("--use_lora --lora_target_modules all-linear", Unsupported, "set lora.target_modules"),
        ("--fsdp hybrid_shard", Unsupported, "supported: "),
        ("--block_size 8 --max_seq_length 9", BadRequest, "say the same; remove one"),
        ("--lr_scheduler_kwargs nonsense", BadRequest, "must be a JSON object"),
    ],
)
def test_a_value_that_a_job_cannot_have_is_refused(
    given: str, kind: type[Exception], why: str
) -> None:
    problem = of_line(f"python x.py {TRAINER} {given}").problem
    assert isinstance(problem, kind)
    with pytest.raises(kind, match=why):
        raise problem


@pytest.mark.parametrize(
    "line", ["deepspeed --num_nodes 2 x.py", "torchrun --nnodes 1:4 --nproc_per_node 2 x.py"]
)
def test_several_machines_are_refused(line: str) -> None:
    problem = of_line(f"{line} {TRAINER}").problem
    assert isinstance(problem, Unsupported)
    assert "add [rendezvous]" in str(problem)


def test_options_of_accelerate_go_before_its_file() -> None:
    file = parse_yaml(
        "distributed_type: DEEPSPEED\nnum_processes: 4\nmixed_precision: fp16\n"
        "deepspeed_config:\n  zero_stage: 2\n",
        source="acc.yaml",
    )
    line = "accelerate launch --config_file acc.yaml --num_processes 2 --zero_stage 3 x.py"
    run = read_launch(f"{line} {TRAINER} --bf16", "run.sh", Path(), lines=False)
    assert run.accelerate_file is not None
    imported = of(run, file)
    assert "acc.yaml:3 mixed_precision" in str(imported.problem)
    run = read_launch(f"{line} {TRAINER}", "run.sh", Path(), lines=False)
    imported = of(run, file)
    assert key(imported, "zero.stage") == 3
    assert (key(imported, "gpus"), key(imported, "train.precision")) == (2, "fp16")
    assert "--zero_stage of run.sh" in {row.key for row in imported.findings.rows}


def test_data_is_text_or_examples_as_its_file_says(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    (tmp_path / "b.json").write_text('[{"instruction": "x", "output": "y"}]')
    (tmp_path / "c.csv").write_text("id,text\n1,a\n")
    turn = {"role": "user", "content": [{"type": "text", "text": "x"}]}
    (tmp_path / "d.jsonl").write_text(json.dumps({"messages": [turn]}) + "\n")
    kinds = {"a.jsonl": "text", "b.json": "examples", "c.csv": "text", "d.jsonl": "examples"}
    (tmp_path / "e.json").write_text('[{"text": "x"}]')
    for name, kind in (kinds | {"e.json": "text"}).items():
        line = f"python x.py --output_dir o --train_file {tmp_path / name}"
        assert key(of_line(line), f"data.{kind}") == [str(tmp_path / name)]
    line = f"python x.py --output_dir o --train_file {tmp_path / 'a.jsonl'} --prompt_column text"
    assert key(of_line(line), "data.examples") == [str(tmp_path / "a.jsonl")]


def test_trl_trains_on_the_column_text_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    (tmp_path / "b.jsonl").write_text('{"messages": []}\n')
    for name, kind in {"a.jsonl": "text", "b.jsonl": "examples"}.items():
        line = f"trl sft --model_name_or_path m --dataset_name {tmp_path / name} --output_dir o"
        assert key(of_line(line), f"data.{kind}") == [str(tmp_path / name)]


def test_bitsandbytes_adamw_is_the_jobs_own() -> None:
    found = of_line(f"python x.py {TRAINER} --optim adamw_bnb_8bit --adam_beta2 0.98")
    assert key(found, "train.optimizer") == "adamw8bit"
    assert key(found, "train.betas") == (0.9, 0.98)


@pytest.mark.parametrize(
    ("given", "double"),
    [
        ("--load_in_4bit", False),
        ("--load_in_4bit --use_bnb_nested_quant", True),
        ("--use_4bit_quantization True --use_nested_quant True --bnb_4bit_quant_type nf4", True),
        ("--bits 4 --double_quant --quant_type nf4 --bnb_4bit_compute_dtype bfloat16", True),
    ],
)
def test_4_bits_are_qlora(given: str, double: bool) -> None:
    found = of_line(f"python x.py {TRAINER} --use_peft --lora_r 16 {given}")
    assert key(found, "lora.frozen_precision") == "nf4"
    assert key(found, "lora.double_quant") is double


def test_all_bits_are_no_qlora() -> None:
    found = of_line(f"python x.py {TRAINER} --use_peft --bits 16 --load_in_4bit False")
    assert "lora.frozen_precision" not in found.tree.get("lora", {})


def test_the_parts_of_a_warmup_stable_decay_are_mapped() -> None:
    options = '{"num_decay_steps": 4, "min_lr_ratio": 0.1, "decay_type": "cosine"}'
    line = f"python x.py {TRAINER} --learning_rate 0.5 --lr_scheduler_type warmup_stable_decay"
    tree = of_line(f"{line} --lr_scheduler_kwargs '{options}'").tree["train"]
    assert (tree["decay_steps"], tree["min_learning_rate"]) == (4, pytest.approx(0.05))


SCRIPT = """conda activate x
cat > ds.json << 'EOF'
{"zero_optimization": {"stage": 2}}
EOF
tee more.json <<EOF >/dev/null
{}
EOF
torchrun --nproc_per_node 2 --master_port $RANDOM x.py --deepspeed ds.json \\
  --run_name run-$(date) --output_dir out-$(date) --learning_rate $RATE \\
  --seed $1 --max_steps 5
"""


def test_values_that_a_shell_alone_knows_are_named_all_at_once_where_they_are_needed() -> None:
    assert read_launch(SCRIPT, "run.sh", Path(), lines=True).findings.wrong == [
        "run.sh:9: --learning_rate: $RATE is not set in the text; write its value",
    ]
    known = SCRIPT.replace("--learning_rate $RATE", "")
    run = read_launch(known, "run.sh", Path(), lines=True)
    assert set(run.given) == {"max_steps"}
    left_out = [row.key for row in run.findings.rows if row.value is None]
    assert left_out == ["--master_port", "--run_name", "--output_dir", "--seed"]


def test_files_that_the_script_writes_are_known() -> None:
    known = SCRIPT.replace("$RATE", "1e-4").replace("$1", "7")
    run = read_launch(known, "run.sh", Path(), lines=True)
    assert run.deepspeed is not None
    assert run.documents["ds.json"] == '{"zero_optimization": {"stage": 2}}\n'
    assert run.documents["more.json"] == "{}\n"


def test_a_comment_that_swallows_the_program_is_named() -> None:
    text = "deepspeed --num_gpus=4 # four cards main.py \\\n  --lr 1\n"
    with pytest.raises(BadRequest, match=r"^run.sh:1: from main.py on, .* a comment in the middle"):
        read_launch(text, "run.sh", Path(), lines=True)
    run = read_launch(text, "run.sh", Path(), lines=True, lenient=True)
    assert run.given["lr"].value == "1"
    assert run.findings.repaired["run.sh"].startswith("deepspeed --num_gpus=4 main.py")


PAGE = """LR=1e-4
deepspeed --num_gpus=4 #cards main.py \\
\u00a0 --deepspeed ds.json \\ # its settings
  --learning_rate\u00a0$LR \u2014bf16 \\ \n  --max_steps 5
"""


def test_what_a_page_did_to_a_command_is_refused_all_at_once() -> None:
    with pytest.raises(BadRequest) as refused:
        read_launch(PAGE, "run.sh", Path(), lines=True)
    assert str(refused.value) == (
        "run.sh:2: from main.py on, a shell would misread this command: a comment "
        "in the middle of a command (line 2); a non-breaking or other odd space (2 lines: 3 to 4); "
        "the end of the line behind a \\ (2 lines: 3 to 4); a long dash for -- (line 4); repair it "
        "with --lenient"
    )
    run = read_launch(PAGE, "run.sh", Path(), lines=True, lenient=True)
    assert run.given["learning_rate"].value == "1e-4"


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("torchrun x.py --lr\u00a01e-4", "--lr"),
        ("torchrun x.py --lr 1e-4 \u3000 --bf16", "--bf16"),
        ("torchrun x.py --name \u201ca b\u201d", "a b"),
        ("CUDA_VISIBLE_DEVICES=0\u00a0torchrun x.py", "torchrun"),
        ("$ torchrun x.py", "torchrun"),
        ("RATE=\u20181e-4\u2019\ntorchrun x.py --lr $RATE", "1e-4"),
        ("torchrun x.py --lr 1\n  --bf16", "--bf16"),
    ],
)
def test_words_that_are_not_those_that_were_typed_are_no_values(line: str, first: str) -> None:
    with pytest.raises(BadRequest, match=rf": from {first} on, a shell would misread"):
        read_launch(line, "run.sh", Path(), lines=True)


def test_odd_characters_within_quotes_and_elsewhere_are_left_alone() -> None:
    text = '# \u201ca\u201d\u00a0b\ntorchrun x.py --name "it\u2019s\u3000a" --bf16 # \u201cb\u201d'
    run = read_launch(text, "run.sh", Path(), lines=True)
    assert run.given["name"].value == "it\u2019s\u3000a"


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ('A="--lr 1"\nA+=" --bf16"\n{line} $A', "1"),
        ("B=2\nif [ $1 = x ]; then\n  B=1\nfi\n{line} --lr $B", "in a branch, in line 3"),
        ("if [ $1 = x ]; then B=1; else B=2; fi\n{line} --lr $B", "in a branch, in line 1"),
        ("if true; then\n  B=1\n  {line} --lr $B\nfi", "1"),
        ("case $1 in\n a) B=1;;\n b) B=2;;\nesac\n{line} --lr $B", "in a branch"),
        ("B=3\nwhile [ $1 ]; do case $1 in -b) B=$2;; esac; done\n{line} --lr $B", "3"),
        ("for B in 1 2; do\n  {line} --lr $B\ndone", "is the variable of a loop"),
        (": ${B:=3}\nB=${B:-1}\n{line} --lr $B", "3"),
        ("N=4\nM=2\n{line} --lr $((64 / $N / M))", "8"),
        ("{line} --lr $((64 / $N))", "has a value only when a shell runs it"),
        ('B=(\n  --lr 5 # a comment\n  --bf16\n)\n{line} "${B[@]}"', "5"),
        ("A=xxxxxxxxxx\n" + "A=$A$A$A$A$A$A$A$A$A$A\n" * 9 + "{line} --lr $A", "more than 65536"),
    ],
)
def test_variables_are_what_bash_would_make_of_them_or_not_known(text: str, rate: str) -> None:
    script = text.replace("{line}", "torchrun x.py --max_steps 3")
    run = read_launch(script, "run.sh", Path(), lines=True)
    if rate.isdecimal():
        assert run.given["lr"].value == rate
    else:
        assert re.search(rate, run.findings.wrong[0])
