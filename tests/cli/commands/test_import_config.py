from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.jobs.imports import pages
from tests.jobs.text.test_configs_in_page import PAGE
from zerotools.cli.commands.import_config import page_import
from zerotools.cli.main import build, run
from zerotools.cli.output.language import columns_of, has_wide
from zerotools.core.errors import BadRequest
from zerotools.jobs.imports.programs.read_launch_line import read_launch
from zerotools.jobs.imports.reading.look_up_job_keys import look_up
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
    assert hint.startswith("hint: remove the comment")


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
        ([], "no config to import was given"),
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
    assert "LLaMA-Factory's config, use --llamafactory" in done.err
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
            ["--launch", "trl sft --dataset_name d --accelerate_config zero9"],
            "--accelerate_config = zero9: is not found here, and is not a preset of TRL (single",
        ),
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


PAGE_SCRIPT = """export WANDB_PROJECT=mine
deepspeed --num_gpus=2 --master_port 9 main.py \\ # two cards
    --deepspeed ds.json \\
    --output_dir out --train_file a.json --learning_rate 1e-4
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "none"))
    return tmp_path


def test_as_script_the_program_runs_with_its_launcher_and_a_repaired_config(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "run.sh").write_text(PAGE_SCRIPT)
    (here / "ds.json").write_text('{"train_batch_size": 4,} // end\n')
    options = ("--launch", "run.sh", "--lenient", "--as", "script", "-o", "job.toml")
    done = imported(capsys, *options)
    assert done.status == 0, done.err
    spec = parse_job((here / "job.toml").read_text(), source="job.toml", base_dir=here)
    assert (spec.engine, spec.gpus, spec.env) == ("script", 2, {"WANDB_PROJECT": "mine"})
    assert spec.script is not None
    config = str(here / "job-ds.json")
    assert spec.script.command[:3] == ("main.py", "--deepspeed", config)
    assert (spec.script.launcher, spec.script.launcher_options) == ("deepspeed", ())
    assert spec.script.checkpoint_dir == str(here / "out")
    assert json.loads((here / "job-ds.json").read_text()) == {"train_batch_size": 4}
    said = unwrapped(done.err)
    assert f"main.py is not in {here}: set script.directory" in said
    assert "a stop sends SIGTERM to every rank" in said
    assert "repeat this command with --as train" in said


def test_as_script_all_that_hinders_it_is_said_at_once(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    line = "deepspeed main.py --deepspeed no.json --lr $LR --seed $2"
    done = imported(capsys, "--launch", line, "--as", "script")
    assert (done.status, done.out) == (2, "")
    assert "error: 3 problems:" in done.err
    assert "no.json: does not exist here" in done.err
    assert "$LR: $LR is not set" in done.err
    done = imported(capsys, "--deepspeed", PLAIN, "--as", "script")
    assert (done.status, "needs the command of a program" in done.err) == (2, True)


SCRIPT_CALLS = [
    ("python -u x.py --a 1", "plain", ["python", "-u", "x.py", "--a", "1"], []),
    ("python -m pkg.x --a 1", "plain", ["-m", "pkg.x", "--a", "1"], []),
    ("torchrun --standalone --nnodes 1 --nproc_per_node 2 x.py", "torchrun", ["x.py"], []),
    ("torchrun --nproc_per_node=2 --max_restarts=3 -m p.x", "torchrun", ["-m", "p.x"], []),
    (
        "accelerate launch --num_processes 2 --mixed_precision bf16 -m p.x y",
        "accelerate",
        ["-m", "p.x", "y"],
        ["--mixed_precision", "bf16"],
    ),
    (
        "python3 -m torch.distributed.run --nproc_per_node 2 --role r x.py",
        "torchrun",
        ["x.py"],
        [],
    ),
    (
        "NPROC_PER_NODE=2 xtuner train cfg --work-dir w",
        "torchrun",
        ["-m", "xtuner.tools.train", "cfg", "--work-dir", "w", "--launcher", "pytorch"],
        [],
    ),
    ("swift sft --model m", "torchrun", ["-m", "swift.cli.sft", "--model", "m"], []),
]


@pytest.mark.parametrize(("line", "launcher", "command", "options"), SCRIPT_CALLS)
def test_as_script_a_job_gives_the_ranks_and_keeps_other_options(
    line: str, launcher: str, command: list[str], options: list[str], here: Path
) -> None:
    settings = read_launch(line, "run.sh", here, lines=False)
    assert settings.program is not None
    assert settings.program.launcher == launcher
    assert list(settings.program.command) == command
    assert list(settings.program.options) == options


def test_one_of_several_launch_lines_is_chosen(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "run.sh").write_text(f"deepspeed a.py {LINE}\ntorchrun b.py {LINE} --max_steps 3\n")
    done = imported(capsys, "--launch", "run.sh")
    assert done.status == 2
    assert "choose one of them with --block N:\n  1  line 1: deepspeed a.py" in done.err
    done = imported(capsys, "--launch", "run.sh", "--block", "2")
    assert (done.status, "steps = 3" in done.out) == (0, True)
    done = imported(capsys, "--launch", "run.sh", "--block", "3")
    assert (done.status, "run.sh has 2 launch lines" in done.err) == (2, True)


def test_data_of_a_hub_is_never_a_path(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    line = f"torchrun x.py {LINE.replace('a.txt', 'owner/alpaca')}"
    done = imported(capsys, "--launch", line, "-o", "job.toml")
    assert done.status == 0
    text = (here / "job.toml").read_text()
    assert "alpaca" not in text
    assert "#   data.text, data.tokens or data.examples" in text
    said = unwrapped(done.err)
    assert "hf download --repo-type dataset owner/alpaca --local-dir owner/alpaca" in said
    assert 'such as ["owner/alpaca/**/*.parquet"]' in said
    assert "add to job.toml: data.text" in said
    (here / "owner" / "alpaca").mkdir(parents=True)
    done = imported(capsys, "--launch", line)
    assert str(here / "owner" / "alpaca") in done.out


def test_a_model_of_the_cache_is_found(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(here))
    line = f"torchrun x.py {LINE.replace('path m', 'path owner/m')}"
    assert "hf download owner/m --local-dir owner/m" in imported(capsys, "--launch", line).err
    snapshot = here / "hub" / "models--owner--m" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"auto_map": {}}')
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    done = imported(capsys, "--launch", line)
    assert f'path = "{snapshot}"' in done.out
    assert "does not run the Python code" in done.err
    assert "hf download" not in done.err


def test_the_report_fits_a_terminal(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "blog.txt").write_text(pages.BLOG)
    done = imported(capsys, "blog.txt")
    assert done.status == 0
    lines = done.err.splitlines()
    assert max(map(len, lines)) <= 80
    prose, in_text = 0, False
    for line in lines:
        is_head = line != "#" and not line.startswith("#  ")
        in_text = line.endswith("with these repairs:") if is_head else in_text
        prose += is_head or not in_text
    assert prose <= 30


def test_the_report_is_chinese_for_who_reads_that_and_its_json_is_not(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "blog.txt").write_text(pages.BLOG)
    english = imported(capsys, "blog.txt", "--json")
    monkeypatch.setenv("ZEROTOOLS_LANG", "zh")
    chinese = imported(capsys, "blog.txt", "--json")
    assert chinese.out == english.out
    lines = chinese.err.splitlines()
    assert max(map(columns_of, lines)) <= 80
    heads = [line for line in lines if line.startswith("# ") and not line.startswith("#  ")]
    assert all(has_wide(line) for line in heads if " with " not in line), heads
    told = chinese.err[chinese.err.index("# 任务与原程序的不同之处") :]
    listed = [line for line in told.splitlines() if line.startswith("#   ") and line[4] != " "]
    commands = ("hf ", "zerotools ")
    assert all(has_wide(line) for line in listed if not line[4:].startswith(commands)), listed
    assert "行：" in chinese.err, "lines of repairs"
    script = imported(capsys, "blog.txt", "--as", "script").err
    steps = script[script.index("# 下一步") :].splitlines()
    plain = ("zerotools ", str(here))
    assert all(has_wide(line) for line in steps if not line[4:].startswith(plain)), steps


@pytest.mark.parametrize(
    "launch", ["accelerate launch --num_processes 2 t.py", "accelerate launch t.py"]
)
def test_a_program_keeps_the_number_of_ranks_of_accelerate(
    capsys: pytest.CaptureFixture[str], here: Path, launch: str
) -> None:
    done = imported(capsys, "--as", "script", "--launch", launch)
    assert ("gpus = 2 " in done.out) is ("2" in launch)
    assert ("accelerate would use every GPU" in " ".join(done.err.split())) is ("2" not in launch)


def test_a_launch_line_gets_the_config_that_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    found = page_import(PAGE, "p.txt", (1, 2))
    assert found.problem is None
    assert found.tree["gpus"] == 2
    assert found.tree["zero"] == {"stage": 2}
    assert found.tree["train"]["learning_rate"] == 1e-4
    assert found.origins["gpus"] == "p.txt:6 --num_gpus"
    assert found.origins["zero.stage"] == "ds.json:12 zero_optimization.stage"
    assert "the end of the line behind a \\ (line 6)" in capsys.readouterr().err


def test_an_accelerate_config_belongs_to_its_launch_line() -> None:
    found = page_import(PAGE, "p.txt", (4, 3))
    assert found.problem is None
    assert (found.tree["gpus"], found.tree["zero"]) == (2, {"stage": 2})
    assert found.tree["train"]["steps"] == 3


def test_several_of_a_kind_must_be_chosen_from(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadRequest, match=r"p\.txt: has 2 launch lines; choose the blocks to"):
        page_import(PAGE, "p.txt", ())
    assert "#     2  line 11: DeepSpeed config, 3 lines" in capsys.readouterr().err
    with pytest.raises(BadRequest, match="has 2 launch lines"):
        page_import(PAGE, "p.txt", (1, 4))
    with pytest.raises(BadRequest, match=r"--block 9: p\.txt has only the blocks 1 to 4"):
        page_import(PAGE, "p.txt", (9,))


def test_a_launch_line_without_a_program_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    page = 'deepspeed --num_gpus 2 # your program\n{"train_batch_size": 8}\n'
    found = page_import(page, "p.txt", ())
    assert found.tree["train"]["batch_size"] == 8
    assert "line 1 is left out" in capsys.readouterr().err
    with pytest.raises(BadRequest, match="no program"):
        page_import("deepspeed --num_gpus 2 # x", "p.txt", ())
    with pytest.raises(
        BadRequest, match=r"has no launch line and no config.* init makes a job file"
    ):
        page_import("nothing", "p.txt", ())


def test_a_script_may_start_its_program_by_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = "python finetune.py --base_model owner/base-7b --data_path a.json --output_dir out\n"
    for text, source in ((line, "run.sh"), (f"#!/bin/bash\n{line}", "run")):
        found = page_import(text, source, ())
        assert found.problem is None
        assert found.tree["train"]["batch_size"] == 128
    with pytest.raises(BadRequest, match="has no launch line and no config"):
        page_import(line, "page.txt", ())  # of a page it may be any command
    with pytest.raises(BadRequest, match=r"run\.sh: has no launch line"):
        page_import("echo nothing\n", "run.sh", ())


def test_pages_import_as_they_were_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    blog = page_import(pages.BLOG, "blog.txt", ())
    assert blog.problem is None
    assert blog.missing == ()
    assert look_up(blog.tree, "train.batch_size") == 8
    assert look_up(blog.tree, "offload.optimizer") == "cpu"
    assert blog.findings.steps[0] == "hf download owner/tiny --local-dir owner/tiny"
    assert page_import(pages.GUIDE, "guide.txt", (1,)).problem is None
    second = page_import(pages.GUIDE, "guide.txt", (2, 3))
    assert second.problem is None
    assert look_up(second.tree, "zero.stage") == 2
    assert second.formulas["train.batch_size"] == (
        "train.batch_size = the sequences that a GPU processes at once (train.micro_batch_size) "
        "x 4 (deepspeed_config.gradient_accumulation_steps) x 2 GPUs"
    )
    tutorial = page_import(pages.TUTORIAL, "tutorial.txt", ())
    assert tutorial.problem is None
    assert look_up(tutorial.tree, "offload.optimizer") == "cpu"
    with pytest.raises(BadRequest, match="start without one: zerotools init"):
        page_import(pages.OVERVIEW, "overview.txt", ())
