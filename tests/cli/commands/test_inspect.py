"""Run directories of other programs: what `inspect` says next works, word for word."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED, GOLDEN, digests
from zerotools.cli.main import build, run
from zerotools.formats import read

RUNS = {
    "verl-0.9.1/fsdp2-w2": ("verl", 1),
    "lightning-2.6.6/fsdp2-w2": ("Lightning", 2),
    "openrlhf-0.11.2/sft-z2-w2": ("OpenRLHF", 2),
    "openrlhf-0.11.2/ppo-z3-w2": ("OpenRLHF", 2),
    "ms-swift-4.6.0/zero2-w2": ("ms-swift", 2),
    "ms-swift-4.6.0/lora": ("ms-swift", 2),
}


@pytest.mark.parametrize(("case", "said"), RUNS.items(), ids=RUNS)
def test_the_commands_that_are_said_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: str,
    said: tuple[str, int],
) -> None:
    program, count = said
    monkeypatch.chdir(tmp_path)
    assert run(build(), ["inspect", str(GOLDEN / case / "checkpoint")]) == 0
    lines = capsys.readouterr().out.splitlines()
    listed = f"a run of {program} in {GOLDEN / case}/checkpoint: "
    assert sum(line.startswith(listed) for line in lines) == 1
    assert len(lines) <= 19, "all of it is in sight on a terminal of 24 rows"
    commands = [shlex.split(line) for line in lines if line.startswith("next: ")]
    assert len(commands) == count
    for _, own, command, *arguments in commands:
        assert own == "zerotools"
        if "BASE_DIR" in arguments:  # which the run does not say
            continue
        assert run(build(), [command, *arguments]) == 0, capsys.readouterr().err
    truth = digests(GOLDEN / case / "truth.safetensors")
    model = read(tmp_path / commands[0][4])
    assert {key.name for key in model.tensors} >= {
        name.removeprefix("model.") if program == "Lightning" else name
        for name, _, role in (key.partition("|") for key in truth)
        if role == "param"
    }


OWN = GOLDEN / "zerotools-0.1.0"


@pytest.mark.parametrize(
    ("path", "program"),
    [
        (OWN, "zerotools 0.1.0, engine torch"),
        (OWN / "step-00000003", "zerotools 0.1.0, engine torch"),
        (DEEPSPEED / "z2-fp16-w2" / "checkpoint", None),
        (DEEPSPEED / "z3-bf16-w2" / "checkpoint", None),
        (DEEPSPEED / "pipeline-z1-fp32-w4" / "checkpoint", None),
    ],
    ids=["job", "checkpoint of a job", "zero-2", "zero-3", "pipeline"],
)
def test_jobs_and_plain_directories_have_a_program_and_commands(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    path: Path,
    program: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(build(), ["inspect", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 18, "the verdict is in sight on a terminal of 24 rows"
    said = [line.split(None, 1)[1] for line in lines if line.startswith("program ")]
    assert said == ([] if program is None else [program])
    commands = [shlex.split(line)[2:] for line in lines if line.startswith("next: zerotools ")]
    assert [command for command, *_ in commands] == ["consolidate", "reshard"]
    for arguments in commands:
        assert run(build(), arguments) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("engine", "shown"),
    [("deepspeed", "zerotools 0.1.0, engine deepspeed"), (5, "not known: {path}/job.json")],
)
def test_a_job_with_deepspeed_has_a_program_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: object, shown: str
) -> None:
    path = tmp_path / "step-2"
    shutil.copytree(DEEPSPEED / "z2-fp32-w2" / "checkpoint", path)
    record = json.loads((OWN / "step-00000003/job.json").read_text())
    (path / "job.json").write_text(json.dumps({**record, "engine": engine}))
    (path / "MANIFEST.json").write_text("{}")
    assert run(build(), ["inspect", str(path)]) == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("program"))
    assert line.startswith(f"program     {shown.format(path=path)}")


@pytest.mark.parametrize(
    "case", ["megatron-bridge-0.3.1/lora/model", "deepspeed-0.19.8/z2-fp32-w2"]
)
def test_records_of_jobs_are_read_only_where_they_are(case: str) -> None:
    """Each imported module costs time at each start."""
    path = GOLDEN / case
    path = path / "checkpoint" if (path / "checkpoint").is_dir() else path
    program = (
        "import sys; from zerotools.cli.main import build, run; "
        f"run(build(), ['inspect', {str(path)!r}]); "
        "print('zerotools.runs.training_record' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


@pytest.mark.parametrize("option", [["--workers", "2"], ["--max-memory", "256MiB"]])
def test_options_of_statistics_need_stats(
    capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    model = ["inspect", str(GOLDEN / "openrlhf-0.11.2/sft-z2-w2" / "checkpoint"), *option]
    assert run(build(), model) == 2
    assert f"{option[0]} needs --stats" in capsys.readouterr().err


@pytest.mark.parametrize("case", ["openrlhf-0.11.2/sft-z2-w2", "openrlhf-0.11.2/ppo-z3-w2"])
def test_the_model_is_the_one_that_openrlhf_exported(case: str, tmp_path: Path) -> None:
    checkpoint = GOLDEN / case / "checkpoint"
    assert run(build(), ["consolidate", str(checkpoint), str(tmp_path / "model")]) == 0
    theirs = checkpoint / "global_step4_hf"
    for name in ("config.json", "tokenizer.json"):
        assert (tmp_path / "model" / name).read_bytes() == (theirs / name).read_bytes()
    ours = digests(tmp_path / "model/model.safetensors")
    assert ours == digests(theirs / "model.safetensors")


def test_the_adapter_is_the_one_that_ms_swift_saved(tmp_path: Path) -> None:
    checkpoint = GOLDEN / "ms-swift-4.6.0/lora/checkpoint"
    out = tmp_path / "adapter"
    assert run(build(), ["consolidate", str(checkpoint), str(out), "--adapter-only"]) == 0
    (theirs,) = checkpoint.glob("*/checkpoint-4/adapter_model.safetensors")
    assert digests(out / "adapter_model.safetensors") == digests(theirs)


@pytest.mark.parametrize("columns", [None, 72, 80])
def test_long_lines_end_between_words(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    columns: int | None,
) -> None:
    source, tag = GOLDEN / "openrlhf-0.11.2/sft-z2-w2" / "checkpoint", "global_step2"
    monkeypatch.chdir(tmp_path)
    shutil.copytree(source / tag, tag)
    Path(tag, "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    assert run(build(), ["inspect", tag]) == 1
    whole = capsys.readouterr().out.splitlines()
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns or 40))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: columns is not None)
    assert run(build(), ["inspect", tag]) == 1
    lines = capsys.readouterr().out.splitlines()
    if columns is None:
        assert lines == whole
        return
    # the directory of the test is one word, however long it is
    assert all(len(line) <= columns for line in lines if str(tmp_path) not in line)
    assert " ".join(lines).split() == " ".join(whole).split()
    at = next(n for n, line in enumerate(lines) if line.startswith("affected: "))
    assert lines[at + 1].startswith("    model.layers")


def test_names_that_do_not_fit_beside_their_figures_are_below_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["inspect", str(OWN / "step-00000003"), "--stats", "--pager", "never"]
    name = "model.layers.0.mlp.down_proj.weight"
    assert run(build(), command) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    (whole,) = [row for row in rows if row[-2:] == ["param", name]]
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(build(), command) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index(f"    {name}")
    assert lines[at - 1].split() == whole[:-1]
