from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from zerotools.cli.main import build, run
from zerotools.jobs.jobfile.parse import parse_job

CONFIGS = Path(__file__).parents[2] / "jobs" / "imports" / "configs"
PLAIN = str(CONFIGS / "plain.json")
JOB = """
gpus = 4
[model]
path = "m"
[data]
text = ["a.txt"]
[train]
steps = 1000
"""


def unwrapped(report: str) -> str:
    """A report without the ends of its lines."""
    return " ".join(line.lstrip("# ") for line in report.splitlines())


class Done(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return str(path)


def imported(capsys: pytest.CaptureFixture[str], *arguments: str) -> Done:
    status = run(build(), ["import", *arguments])
    return Done(status, *capsys.readouterr())


def test_a_job_file_on_stdout_and_a_report_on_stderr(
    capsys: pytest.CaptureFixture[str], job: str, tmp_path: Path
) -> None:
    done = imported(capsys, job, "--deepspeed", PLAIN)
    assert done.status == 0
    spec = parse_job(done.out, source="x", base_dir=Path("/elsewhere"))
    assert spec.model.path == str(tmp_path / "m")
    assert (spec.train.batch_size, spec.train.micro_batch_size) == (32, 4)
    assert f"max_grad_norm = 1.0  # {PLAIN}:5 gradient_clipping\n" in done.out
    assert "# ignored\n" in done.err
    assert all(line.startswith("#") for line in done.err.splitlines())


def test_json(capsys: pytest.CaptureFixture[str], job: str) -> None:
    done = imported(capsys, job, "--deepspeed", PLAIN, "--json")
    told = json.loads(done.out)
    assert told["job"]["train"]["batch_size"] == 32
    assert told["deepspeed"]["train_batch_size"] == 32
    assert told["missing"] == []
    assert {row["outcome"] for row in told["keys"]} == {"mapped", "default", "ignored"}


def test_without_a_job_file_the_missing_keys_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = imported(capsys, "--deepspeed", PLAIN)
    assert done.status == 0
    assert done.out.endswith(
        "#   model.path, or model.config to start from random weights\n"
        "#   data.text, data.tokens or data.examples\n"
        "#   train.steps or train.epochs\n"
    )


def test_a_file_that_exists_is_left_alone(
    capsys: pytest.CaptureFixture[str], job: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.toml"
    assert imported(capsys, job, "--deepspeed", PLAIN, "-o", str(out)).out == ""
    written = out.read_text()
    assert parse_job(written, source="x", base_dir=tmp_path).train.batch_size == 32
    done = imported(capsys, job, "--deepspeed", PLAIN, "-o", str(out))
    assert (done.status, out.read_text()) == (2, written)
    assert "exists already" in done.err


def test_broken_json_has_status_2_and_a_mark(capsys: pytest.CaptureFixture[str]) -> None:
    done = imported(capsys, "--deepspeed", str(CONFIGS / "broken.json"))
    assert done.status == 2
    first, _, mark, hint = done.err.splitlines()
    assert first.endswith("broken.json:2:29: is not valid JSON: JSON has no comments")
    assert mark.endswith("^")
    assert hint.startswith("hint: remove it")


def test_lenient_says_what_it_let_pass(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 4,} // end')
    done = imported(capsys, "--deepspeed", str(path), "--lenient")
    assert done.status == 0
    assert "a comment (line 1); a trailing comma (line 1)" in unwrapped(done.err)
    assert '#   {"train_batch_size": 4}\n' in done.err


def test_what_is_not_supported_has_status_4_and_no_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 4, "optimizer": {"type": "Lamb"}}')
    done = imported(capsys, "--deepspeed", str(path))
    assert (done.status, done.out) == (4, "")
    assert done.err.startswith("error: ")
    assert f'{path}:1 optimizer.type = "Lamb": the engine torch' in done.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "there is no config to import"),
        (["--lenient"], "--lenient is for a config"),
        (["--deepspeed", "none.json"], "none.json: there is no such DeepSpeed config"),
        (["none.toml", "--deepspeed", PLAIN], "none.toml: there is no such job file"),
    ],
)
def test_requests_that_cannot_be(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = imported(capsys, *arguments)
    assert done.status == 2
    assert told in done.err


def test_an_accelerate_config_and_the_file_that_it_names_beside_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB.replace("gpus = 4", "") + "batch_size = 16\n")
    config = CONFIGS / "accelerate_file.yaml"
    done = imported(capsys, str(job), "--accelerate", str(config))
    assert done.status == 0
    assert f"stage = 3  # {CONFIGS / 'zero3_auto.json'}:31 zero_optimization.stage\n" in done.out
    assert f"gpus = 2  # {config}:9 num_processes\n" in done.out


def test_an_accelerate_config_may_be_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "acc.json"
    path.write_text('{"distributed_type": "NO", "mixed_precision": "bf16"}')
    done = imported(capsys, "--accelerate", str(path))
    assert done.status == 0
    assert f'precision = "bf16"  # {path}:1 mixed_precision\n' in done.out


def test_a_config_that_was_given_to_the_wrong_option_is_told_so(
    capsys: pytest.CaptureFixture[str], job: str, tmp_path: Path
) -> None:
    config = tmp_path / "default_config.yaml"
    config.write_text(
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: lost.json\n"
    )
    done = imported(capsys, job, "--deepspeed", str(config))
    assert done.status == 2
    assert "pass an accelerate config with --accelerate" in done.err
    done = imported(capsys, job, "--accelerate", str(config))
    assert done.status == 2
    assert (
        f"{config}: deepspeed_config_file = lost.json: is found neither here nor next to"
    ) in done.err


LINE = "--model_name_or_path m --train_file a.txt --output_dir out --per_device_train_batch_size 4"


def test_a_script_has_the_values_that_auto_stands_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copy(CONFIGS / "zero3_auto.json", tmp_path / "ds.json")
    script = tmp_path / "run.sh"
    script.write_text(
        f"#!/bin/bash\nLR=1e-4\ndeepspeed --num_gpus 2 x.py --deepspeed ds.json {LINE} \\\n"
        "  --learning_rate $LR --max_steps 50 --bf16 --gradient_accumulation_steps 2\n"
    )
    done = imported(capsys, "--launch", str(script), "--json")
    assert done.status == 0
    said = json.loads(done.out)
    assert said["job"]["train"]["batch_size"] == 16
    assert said["job"]["train"]["learning_rate"] == 1e-4
    assert said["job"]["zero"]["stage"] == 3
    assert said["origins"]["train.steps"] == f"{script}:4 --max_steps"
    assert {"optimizer.params.lr", "train_batch_size"} <= {auto["key"] for auto in said["auto"]}
    assert said["missing"] == []


def test_a_job_file_of_a_launch_line_is_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    done = imported(capsys, "--launch", f"torchrun --nproc_per_node 2 x.py {LINE}")
    assert done.status == 0
    job = parse_job(done.out, source="job.toml", base_dir=tmp_path)
    assert (job.gpus, job.train.epochs, job.train.batch_size) == (2, 3.0, 8)


def test_a_yaml_of_llamafactory_is_told_from_one_of_axolotl(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "x.yaml"
    config.write_text(f"model_name_or_path: {tmp_path}\nfinetuning_type: full\n")
    assert imported(capsys, "--llamafactory", str(config)).status == 0
    done = imported(capsys, "--axolotl", str(config))
    assert done.status == 2
    assert "LLaMA-Factory's is given with --llamafactory" in done.err
    config.write_text("- a\n- b\n")
    done = imported(capsys, "--llamafactory", str(config))
    assert done.status == 2
    assert "a config is a mapping" in done.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--launch", ""], "--launch: is empty"),
        (["--launch", "lost.sh"], "lost.sh: there is no such script"),
        (["--launch", "deepspeed x.py --deepspeed no.json"], "= no.json: is not found here"),
        (
            ["--launch", "deepspeed x.py --deepspeed a.json", "--deepspeed", PLAIN],
            "cannot be combined with --deepspeed",
        ),
        (
            ["--launch", "python x.py", "--axolotl", "x.yml"],
            "--launch and --axolotl cannot be combined",
        ),
        (["--llamafactory", "lost.yaml"], "there is no such LLaMA-Factory config"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    done = imported(capsys, *arguments)
    assert (done.status, why in done.err) == (2, True), done.err
