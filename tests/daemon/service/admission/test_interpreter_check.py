"""Whether an interpreter can train is found out in a child, without importing torch."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.hung_disks import hung_disk
from tests.daemon.waiting import wait_async
from zerotools.core.errors import BadRequest
from zerotools.io.files.optional_packages import EXTRAS
from zerotools.jobs.jobfile.derive_evaluation_job import HARNESS
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd.service.admission import interpreter_check
from zerotoolsd.service.admission.interpreter_check import (
    DEEPSPEED,
    TRAINER,
    Needs,
    check_interpreter,
    needs_from,
    needs_of,
)

ROOT = Path(__file__).resolve().parents[4]


def ask(python: str, needs: Needs = TRAINER, **env: str) -> None:
    asyncio.run(check_interpreter(python, {"PATH": os.environ["PATH"], **env}, needs))


def refusal(python: str, needs: Needs = TRAINER, **env: str) -> str:
    with pytest.raises(BadRequest) as info:
        ask(python, needs, **env)
    return str(info.value)


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return str(path)


def bare(path: Path) -> str:
    """An interpreter without site-packages."""
    return script(path, f'exec {sys.executable} -S "$@"')


def test_an_interpreter_without_torch_is_refused_with_the_line_to_type(tmp_path: Path) -> None:
    python = bare(tmp_path / "python")
    assert refusal(python) == (
        f"python = {python}: has no torch and no transformers; run "
        f"{python} -m pip install 'torch>=2.8' 'transformers>=5.1'"
    )


def test_a_package_that_is_too_old_is_refused_with_the_line_to_type(tmp_path: Path) -> None:
    (tmp_path / "torch-2.7.1+cu128.dist-info").mkdir()
    (tmp_path / "torch-2.7.1+cu128.dist-info" / "METADATA").write_text("Version: 2.7.1+cu128\n")
    for module in ("torch", "transformers"):
        (tmp_path / f"{module}.py").touch()
    python = bare(tmp_path / "python")
    assert refusal(python, PYTHONPATH=str(tmp_path)) == (
        f"python = {python}: has torch 2.7.1+cu128; a job needs torch>=2.8; run "
        f"{python} -m pip install 'torch>=2.8'"
    )


def test_a_package_with_extras_may_be_too_old(tmp_path: Path) -> None:
    (tmp_path / "lm_eval-0.4.9.dist-info").mkdir()
    (tmp_path / "lm_eval-0.4.9.dist-info" / "METADATA").write_text("Version: 0.4.9\n")
    (tmp_path / "lm_eval.py").touch()
    python = bare(tmp_path / "python")
    needs = replace(TRAINER, packages=EXTRAS["evals"])
    assert "has lm_eval 0.4.9; a job needs lm_eval[hf]>=" in refusal(
        python, needs, PYTHONPATH=str(tmp_path)
    )


def test_a_job_needs_what_its_keys_need() -> None:
    tree = {
        "device": "cpu",
        "model": {"config": {"model_type": "llama"}},
        "data": {"examples": ["/a.json"], "tokenizer": "/tokenizer"},
        "train": {"steps": 1, "batch_size": 1},
    }
    scored = {"eval": {"fraction": 0.1, "predict_with_generate": True}}
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, []),
        ({"lora": {"rank": 4}}, ["peft"]),
        (
            {"lora": {"rank": 4, "frozen_precision": "nf4"}, "model": {"path": "/model"}},
            ["peft", "bitsandbytes"],
        ),
        (scored, ["rouge_score", "sacrebleu"]),
        ({"metrics": {"wandb": "p", "mlflow": "e"}}, ["wandb", "mlflow"]),
        ({"lora": {"rank": 4}, **scored}, ["peft", "rouge_score", "sacrebleu"]),
        ({"eval": {"tasks": ["hellaswag"]}}, ["lm_eval"]),
    ]
    for keys, wanted in cases:
        needs = needs_of(job_from_dict({**tree, **keys}, source="job.toml"))
        assert needs is not None
        assert list(needs.packages) == ["torch", "transformers", *wanted]


def test_a_job_that_evaluates_needs_the_harness_alone() -> None:
    script = {"command": [*HARNESS, "--tasks", "a"], "directory": "/", "evaluates": "/out"}
    tree = {"engine": "script", "device": "cpu", "script": script}
    needs = needs_of(job_from_dict(tree, source="job"))
    assert needs is not None
    assert list(needs.packages) == ["lm_eval"]
    own = {**tree, "script": {**script, "command": ["/bin/true"]}}
    assert needs_of(job_from_dict(own, source="job")) is None


def test_tasks_are_looked_up_in_the_job_s_own_harness(tmp_path: Path) -> None:
    package = tmp_path / "packages" / "lm_eval"
    (package / "tasks").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('was imported')")
    (package / "tasks" / "arc.yaml").write_text("task: arc_easy\ntag: ai2_arc\n")
    own = tmp_path / "own"
    own.mkdir()
    (own / "mine.yaml").write_text("task: my_task\n")
    found = {"PYTHONPATH": str(package.parent)}
    needs = replace(TRAINER, packages={}, tasks=("arc_easy", "ai2_arc", "my_task"))
    python = bare(tmp_path / "python")
    ask(python, replace(needs, task_dir=str(own)), **found)
    said = refusal(python, replace(needs, tasks=("arc_easi", "my_task")), **found)
    assert said.startswith(
        "eval.tasks: lm-evaluation-harness has no task arc_easi (nearest: arc_easy), and no task "
        "my_task; correct the name, or set eval.task_dir"
    )
    silent = script(tmp_path / "silent", f'[ "$1" = -P ] && exit 1; exec {python} "$@"')
    ask(silent, replace(needs, tasks=("arc_easi",)), **found)  # the job that evaluates finds out
    assert needs_from(json.loads(json.dumps(asdict(needs)))) == needs


def test_modules_are_found_without_being_imported(tmp_path: Path) -> None:
    for name in ("torch", "transformers"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('was imported')")
    ask(bare(tmp_path / "python"), PYTHONPATH=str(tmp_path))


def test_the_engine_deepspeed_needs_deepspeed_too(tmp_path: Path) -> None:
    python = bare(tmp_path / "python")
    for name in ("torch", "transformers"):
        (tmp_path / f"{name}.py").write_text("")
    found = {"PYTHONPATH": str(tmp_path)}
    assert refusal(python, DEEPSPEED, **found) == (
        f"python = {python}: has no deepspeed; run {python} -m pip install 'deepspeed>=0.16'"
    )
    ask(python, **found)


def test_offload_to_nvme_needs_what_async_io_is_compiled_with(tmp_path: Path) -> None:
    """It is asked of the job's own interpreter and PATH, and nothing that a job starts has to."""
    python = bare(tmp_path / "python")
    for name in ("torch", "transformers"):
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text("raise SystemExit('was imported')")
    programs = tmp_path / "programs"
    programs.mkdir()
    needs = replace(DEEPSPEED, async_io=True)

    def said() -> str:
        return refusal(python, needs, PYTHONPATH=str(tmp_path), PATH=f"{programs}", CXX="cxx")

    begin = f'python = {python}: deepspeed.config offloads to "nvme", '
    assert said().startswith(begin)
    assert "cannot be compiled here: cxx is not installed; install it, or offload to" in said()
    script(programs / "ninja", "exit 0")
    script(programs / "cxx", "exit 1")
    assert "cxx does not find libaio; install libaio-dev (libaio-devel on" in said()
    script(programs / "cxx", 'printf "#!/bin/sh\\nexit 38\\n" > "$3"; /bin/chmod +x "$3"')
    assert "the kernel has no asynchronous I/O: Function not implemented" in said()
    script(programs / "cxx", 'printf "#!/bin/sh\\nexit 0\\n" > "$3"; /bin/chmod +x "$3"')
    ask(python, needs, PYTHONPATH=str(tmp_path), PATH=f"{programs}", CXX="cxx")
    on_gpus, home = replace(needs, device="cuda"), tmp_path / "toolkit"
    found = {"PYTHONPATH": str(tmp_path), "PATH": f"{programs}", "CXX": "cxx"}
    assert "nvcc cannot be run (No such file" in refusal(
        python, on_gpus, CUDA_HOME=str(home), **found
    )
    (home / "bin").mkdir(parents=True)
    script(home / "bin" / "nvcc", "exit 0")
    ask(python, on_gpus, CUDA_HOME=str(home), **found)
    failing = script(tmp_path / "failing", f'[ "$1" = -P ] && exit 1; exec {python} "$@"')
    script(programs / "cxx", "exit 1")
    ask(failing, needs, PYTHONPATH=str(tmp_path), PATH=f"{programs}", CXX="cxx")  # ranks ask again
    ready = tmp_path / "deepspeed" / "ops" / "aio" / "async_io_op.cpython.so"
    ready.parent.mkdir(parents=True)
    ready.write_text("")
    ask(python, needs, PYTHONPATH=str(tmp_path), PATH="/nowhere")


def test_an_accelerate_that_starts_one_process_for_two_gpus_is_refused(tmp_path: Path) -> None:
    script = {"command": ["t.py"], "launcher": "accelerate", "directory": str(tmp_path)}
    tree = {"engine": "script", "script": script}
    alone, both = (needs_of(job_from_dict({**tree, "gpus": n}, source="job")) for n in (1, 2))
    assert alone is not None
    assert both is not None
    assert needs_from(json.loads(json.dumps(asdict(both)))) == both
    both = replace(both, packages={})
    config = tmp_path / "accelerate" / "default_config.yaml"
    config.parent.mkdir()
    config.write_text("distributed_type: NO\n")
    why = refusal(sys.executable, both, HF_HOME=str(tmp_path))
    assert why.startswith(
        f"{config}: distributed_type is NO, so accelerate starts only one process for"
    )
    config.write_text("distributed_type: MULTI_GPU\n")
    ask(sys.executable, both, HF_HOME=str(tmp_path))
    config.write_text("distributed_type: NO\nuse_cpu: true\n")
    why = refusal(sys.executable, replace(alone, packages={}), HF_HOME=str(tmp_path))
    assert why.startswith(
        f"{config}: use_cpu is true, so accelerate trains on the CPU; set use_cpu to"
    )


def test_jobs_of_deepspeed_need_what_they_ask_it_for() -> None:
    for device in ("cpu", "nvme"):
        offload = {"device": device, "nvme_path": "/n"}
        tree: dict[str, Any] = {
            "device": "cpu",
            "engine": "deepspeed",
            "zero": {"stage": 3},
            "model": {"config": {"model_type": "llama"}},
            "data": {"text": ["/a.txt"]},
            "train": {"steps": 1, "batch_size": 1},
            "deepspeed": {"config": {"zero_optimization": {"stage": 3, "offload_param": offload}}},
        }
        needs = needs_of(job_from_dict(tree, source="job.toml"))
        assert needs is not None
        assert needs.async_io == (device == "nvme")
    with_adapters = {**tree, "lora": {"rank": 4}}
    del with_adapters["deepspeed"]["config"]["zero_optimization"]["offload_param"]
    needs = needs_of(job_from_dict(with_adapters, source="job.toml"))
    assert needs is not None
    assert list(needs.packages) == ["torch", "transformers", "deepspeed", "peft"]


def test_a_quick_answer_leaves_nothing_to_warn_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    python = script(tmp_path / "python", "echo '[[3, 12], [], {}]'")
    for _ in range(20):
        ask(python)
    assert caplog.records == []


def test_only_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").touch()
    message = refusal(bare(tmp_path / "python"), PYTHONPATH=str(tmp_path))
    assert "has no transformers; run " in message


def test_an_old_python_is_refused(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "echo '[[3, 8], [], {}]'")
    assert refusal(python) == f"python = {python}: is Python 3.8; a job needs 3.11 or newer"


@pytest.mark.parametrize("output", ["hello", "[]", "[1, 2]", "null"])
def test_a_program_that_is_no_python_is_refused(tmp_path: Path, output: str) -> None:
    python = script(tmp_path / "python", f"echo '{output}'")
    assert refusal(python) == (
        f"python = {python}: is not a Python interpreter; name one, such as VENV/bin/python"
    )


def test_a_program_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "cannot be started: No such file" in refusal(str(tmp_path / "python"))


def test_an_interpreter_on_a_file_system_that_hangs_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter_check, "KILL_SECONDS", 0.1)
    with hung_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("no file system may be mounted here")
        disk.hang()

        async def story() -> None:
            python, turns = str(disk.door / "python"), 0
            asked = asyncio.create_task(
                interpreter_check.run_interpreter(python, {}, "-c", "", deadline_seconds=0.3)
            )

            async def done() -> bool:
                nonlocal turns
                turns += 1
                return asked.done()

            await wait_async(done, "the end of the question")
            with pytest.raises(BadRequest, match=r"did not answer within 0\.3 s"):
                await asked
            assert turns > 3  # the loop went on
            disk.let_go()
            for thread in threading.enumerate():  # asyncio's own, which wait for children
                if "waitpid" in thread.name:
                    await asyncio.to_thread(thread.join)
            for _ in range(10):  # what they tell the loop
                await asyncio.sleep(0)

        asyncio.run(story())


def test_an_interpreter_that_never_stops_talking_is_cut_short(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "exec yes")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert refusal(python) == (
        f"python = {python}: is not a Python interpreter; name one, such as VENV/bin/python"
    )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def a_deepspeed_job(config: dict[str, Any]) -> Needs:
    needs = needs_of(
        job_from_dict(
            {
                "engine": "deepspeed",
                "device": "cpu",
                "ranks": 2,
                "model": {"config": {"model_type": "llama"}},
                "data": {"text": ["/a.txt"]},
                "zero": {"stage": config["zero_optimization"]["stage"]},
                "train": {"steps": 1, "batch_size": 4, "precision": "fp32"},
                "deepspeed": {"config": config},
            },
            source="job.toml",
        )
    )
    assert needs is not None
    return needs


def fake_deepspeed(folder: Path, body: str) -> dict[str, str]:
    """A package of that name whose configuration does `body`."""
    for name in ("torch", "transformers"):
        (folder / f"{name}.py").write_text("")
    (folder / "torch.py").unlink()
    for package in ("torch", "torch/optim", "deepspeed", "deepspeed/runtime"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("print('a word of its own')\n")
    (folder / "deepspeed/runtime/config.py").write_text(
        "DEEPSPEED_OPTIMIZERS = ['adamw']\n"
        "class DeepSpeedConfig:\n"
        "    optimizer_name = 'adamw'\n"
        "    def __init__(self, tree):\n"
        "        self._initialize_params(tree)\n"
        "    def _initialize_params(self, tree):\n"
        f"        {body}\n"
    )
    return {"PYTHONPATH": str(folder)}


def test_what_deepspeed_itself_says_is_said_at_submit(tmp_path: Path) -> None:
    env = fake_deepspeed(tmp_path, "assert 'amp' not in tree, f'{self.world_size} ranks: no amp'")
    python = bare(tmp_path / "python")
    ask(python, a_deepspeed_job({"zero_optimization": {"stage": 1}}), **env)
    refused = a_deepspeed_job({"zero_optimization": {"stage": 1}, "amp": {"enabled": True}})
    assert refusal(python, refused, **env) == (
        f"deepspeed.config: the DeepSpeed of {python} does not accept it: "
        "AssertionError: 2 ranks: no amp"
    )


def test_an_optimizer_that_deepspeed_does_not_have(tmp_path: Path) -> None:
    env = fake_deepspeed(tmp_path, "self.optimizer_name = 'ZeroOneAdam'")
    needs = a_deepspeed_job({"zero_optimization": {"stage": 1}})
    told = refusal(bare(tmp_path / "python"), needs, **env)
    assert told.endswith("ZeroOneAdam is neither an optimizer of DeepSpeed nor of torch.optim")


def test_a_deepspeed_that_cannot_be_imported_here_is_left_to_the_ranks(tmp_path: Path) -> None:
    env = fake_deepspeed(tmp_path, "raise SystemExit('no answer')")
    ask(bare(tmp_path / "python"), a_deepspeed_job({"zero_optimization": {"stage": 1}}), **env)


@pytest.mark.full  # DeepSpeed is imported twice; the cases above pretend to be one
@pytest.mark.deepspeed
def test_the_real_deepspeed_is_asked() -> None:
    good: dict[str, Any] = {"zero_optimization": {"stage": 1}}
    bad = {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}
    told = refusal(sys.executable, a_deepspeed_job(bad))
    assert "Partial offloading only supported for ZeRO Stage 3" in told
    ask(sys.executable, a_deepspeed_job(good))
