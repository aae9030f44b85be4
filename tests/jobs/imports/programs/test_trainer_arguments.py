"""Whatever is written to an argument: a job, or a refusal that names it."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.imports.programs.told import key, of, of_line, rows
from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.imports.combine_configs import Imported
from zerotools.jobs.imports.programs.axolotl import read_axolotl
from zerotools.jobs.imports.programs.llamafactory import read_llamafactory
from zerotools.jobs.imports.programs.read_launch_line import read_launch
from zerotools.jobs.launcher_keys import program_keys, trainer_keys
from zerotools.jobs.text.config_document import Document

NAMES: Sequence[str] = sorted(
    {
        *trainer_keys.DIRECT,
        *trainer_keys.OF_EVAL,
        *trainer_keys.SYNONYMS,
        *trainer_keys.TRAINER_DEFAULTS,
        *trainer_keys.FEATURES,
        *program_keys.LLAMAFACTORY_NAMES,
        *program_keys.AXOLOTL_NAMES,
        *("optim", "max_steps", "warmup_ratio", "use_lora", "lora_alpha", "lora_target_modules"),
        *("train_file", "resume_from_checkpoint", "fsdp", "zero_stage", "lr_scheduler_kwargs"),
        *("eval_steps", "config_name", "dataset", "datasets", "adapter", "stage", "deepspeed"),
    }
)
WORDS = ["1", "0", "-1", "1e-4", "1e400", "nan", "no", "auto", "x", "''", "'a b'", "{}", "9" * 30]
VALUES: Sequence[Any] = [1, 0, -1, 1.5, True, None, "x", "", [], ["a"], {}, [{}], 10**30, "auto"]
LAUNCHERS = [
    "deepspeed --num_gpus 2 x.py",
    "torchrun --nproc_per_node -3 x.py",
    "accelerate launch --use_deepspeed --zero_stage 7 --gpu_ids x x.py",
    "accelerate launch --use_fsdp --num_processes x --mixed_precision q x.py",
]


LINE = "python run_clm.py --model_name_or_path m --train_file t.txt --block_size 8 --output_dir o"


def line(draw: random.Random) -> Imported:
    given = [f"--{draw.choice(NAMES)} {draw.choice(WORDS)}" for _ in range(draw.randrange(8))]
    text = f"{draw.choice(LAUNCHERS)} {' '.join(given)}"
    if draw.random() < 0.2:
        at = draw.randrange(len(text))
        text = text[:at] + draw.choice("'\"\\$`(){}<>|&;\n#") + text[at:]
    return of(read_launch(text, "run.sh", Path(), lines=True))


def yaml(draw: random.Random) -> Imported:
    tree = {draw.choice(NAMES): draw.choice(VALUES) for _ in range(draw.randrange(10))}
    if draw.random() < 0.5:
        tree["base_model"] = draw.choice(VALUES)
        return of(read_axolotl(Document("x.yml", tree, {}), Path()))
    tree["model_name_or_path"] = draw.choice(VALUES)
    return of(read_llamafactory(Document("x.yml", tree, {}), Path()))


@pytest.mark.parametrize("seed", range(10))
def test_hostile_arguments_are_refused_or_read(seed: int) -> None:
    draw = random.Random(seed)
    read = 0
    for _ in range(120):
        try:
            imported = draw.choice((line, yaml))(draw)
        except ZerotoolsError:
            continue
        read += imported.problem is None
    assert read


@pytest.mark.parametrize("seed", range(100))
def test_every_argument_is_in_the_report(seed: int) -> None:
    draw = random.Random(seed)
    names = draw.sample([name for name in NAMES if name != "deepspeed"], 6)
    given = [f"--{name} {draw.choice(WORDS)}" for name in names]
    try:
        found = of(read_launch(f"python x.py {' '.join(given)}", "run.sh", Path(), lines=True))
    except ZerotoolsError:
        pytest.fail("nothing in this line is unknown to a shell")
    listed = {row.key for row in found.findings.rows}
    said = "\n".join([*found.findings.wrong, *found.findings.unsupported])
    assert [name for name in names if f"--{name}" not in listed and f"--{name}" not in said] == []


@pytest.mark.parametrize(
    "given",
    [
        "--optim adafactor --adam_beta1 0.9 --adam_beta2 0.99 --adam_epsilon 1e-8",
        "--optim lion --adam_beta2 0.99",
        "--adam_beta1 0.9 --adam_beta2 0.99",
        "--lr_scheduler_kwargs {}",
        "--load_in_4bit --use_nested_quant --quant_type nf4 --bits 4",
        "--load_in_4bit no --bits 4 --lora_r 8",
    ],
)
def test_what_another_argument_makes_useless_is_in_the_report(given: str) -> None:
    found = of(read_launch(f"python x.py {given}", "run.sh", Path(), lines=True))
    listed = {row.key for row in found.findings.rows}
    said = "\n".join([*found.findings.wrong, *found.findings.unsupported])
    names = [word for word in given.split() if word.startswith("--")]
    assert [name for name in names if name not in listed and name not in said] == []


@pytest.mark.parametrize(("name", "order"), [("optimizer.pt", "model"), ("global_step500", None)])
def test_optimizer_state_by_number_comes_with_its_order(
    tmp_path: Path, name: str, order: str | None
) -> None:
    checkpoint = tmp_path / "checkpoint-500"
    checkpoint.mkdir()
    (checkpoint / name).touch()
    imported = of_line(
        f"python run_clm.py --model_name_or_path {tmp_path} --train_file a.txt "
        f"--resume_from_checkpoint {checkpoint}"
    )
    assert key(imported, "resume_from") == str(checkpoint)
    assert key(imported, "resume_order") == order


def test_report_to_names_the_trainers_projects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    found = of_line(f"{LINE} --report_to wandb mlflow tensorboard")
    assert key(found, "metrics.wandb") == "mine"
    assert key(found, "metrics.mlflow") == "Default"
    assert found.spec is not None
    assert found.spec.metrics.trackers == {"wandb": "mine", "mlflow": "Default"}
    assert rows(found, "ignored")["--report_to"].startswith("tensorboard: every step is recorded")


def test_a_project_that_is_said_goes_first() -> None:
    found = of_line(f"{LINE} --report_to wandb --wandb_project p --wandb_entity team")
    assert key(found, "metrics.wandb") == "team/p"


def test_a_project_alone_is_axolotls_way() -> None:
    assert key(of_line(f"{LINE} --wandb_project p"), "metrics.wandb") == "p"
    assert key(of_line(f"{LINE} --mlflow_experiment_name e"), "metrics.mlflow") == "e"


@pytest.mark.parametrize("nowhere", ["none", "tensorboard", "swanlab"])
def test_what_a_job_has_not_is_ignored(nowhere: str) -> None:
    found = of_line(f"{LINE} --report_to {nowhere} --wandb_project p")
    assert key(found, "metrics.wandb") is None
    ignored = rows(found, "ignored")
    assert ignored["--wandb_project"] == "report_to does not name wandb"
    assert ignored["--report_to"].startswith("every step is recorded")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--optim adafactor", "Adafactor: the job multiplies the learning rate"),
        ("--save_steps 0.1", "checkpoints: only after the last step"),
        ("--save_strategy epoch", "checkpoints: only after the last step"),
        ("--validation_file v.txt --eval_strategy epoch", "evaluations: only after the last step"),
        ("", "in windows of 8 tokens"),
    ],
)
def test_what_the_program_does_otherwise_is_a_difference(given: str, said: str) -> None:
    assert any(said in each for each in of_line(f"{LINE} {given}").findings.differences)


def test_without_a_length_the_windows_of_text_are_those_of_the_job() -> None:
    imported = of_line(LINE.replace("--block_size 8", ""))
    assert any("in windows of 256 tokens" in each for each in imported.findings.differences)


@pytest.mark.parametrize(
    "given", ["--optim_args momentum=0.9", "--rpo_alpha 1.0", "--rope_scaling linear"]
)
def test_what_changes_the_training_is_refused(given: str) -> None:
    assert given.split()[0] in str(of_line(f"{LINE} {given}").problem)
