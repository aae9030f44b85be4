"""A job for DeepSpeed is queued with its configuration resolved, however it is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.cli.commands.test_submit import JOB
from tests.cli.conftest import Command
from tests.daemon.http.api.fakes import FakeService

CONFIG = '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": "2"}}'
ENGINE = f'engine = "deepspeed"\n{JOB}'
PRECISION = 'precision = "fp32"\n'


def written(directory: Path, job: str) -> tuple[str, str]:
    """The job file and DeepSpeed's, beside one another."""
    (directory / "ds.json").write_text(CONFIG)
    (directory / "job.toml").write_text(job)
    return str(directory / "job.toml"), str(directory / "ds.json")


def queued(service: FakeService, number: int) -> Any:
    return service.views[number].spec["deepspeed"]["config"]


def test_an_option_and_a_key_that_names_the_file_queue_the_same(
    zerotools: Command, service: FakeService, tmp_path: Path
) -> None:
    named = f'{ENGINE}{PRECISION}[deepspeed]\nconfig = "ds.json"\n'
    job, config = written(tmp_path, ENGINE + PRECISION)
    first = zerotools("submit", job, "--deepspeed", config)
    assert (first.status, first.out.split("\n")[0]) == (
        0,
        "job 1 (job) is queued: 2 ranks on CPU, ZeRO stage 2, 40 steps",
    )
    assert '#   -  "train_micro_batch_size_per_gpu": "auto",' in first.err
    assert '#   +  "train_micro_batch_size_per_gpu": 6,' in first.err
    job, config = written(tmp_path, named)
    assert zerotools("submit", job).status == 0
    assert queued(service, 1) == queued(service, 2)
    assert queued(service, 1)["zero_optimization"] == {"stage": 2}
    twice = zerotools("submit", job, "--deepspeed", config)
    assert twice.status == 2
    assert "deepspeed.config = ds.json: cannot be combined with --deepspeed" in twice.err


def test_blog_syntax_is_let_pass_in_a_file_that_the_job_names(
    zerotools: Command, service: FakeService, tmp_path: Path
) -> None:
    job, config = written(tmp_path, f'{ENGINE}{PRECISION}[deepspeed]\nconfig = "ds.json"\n')
    Path(config).write_text(f"// from a blog\n{CONFIG}")
    assert "(--lenient repairs this" in zerotools("submit", job).err
    done = zerotools("submit", job, "--lenient")
    assert done.status == 0, done.err
    assert "a comment (line 1)" in re.sub(r"\n#\s+", " ", done.err)
    assert queued(service, 1)["zero_optimization"] == {"stage": 2}
    job, _ = written(tmp_path, ENGINE)
    assert "--lenient repairs a config file" in zerotools("submit", job, "--lenient").err


def test_without_a_configuration_it_is_refused(zerotools: Command, tmp_path: Path) -> None:
    job, _ = written(tmp_path, ENGINE)
    done = zerotools("submit", job)
    assert done.status == 2
    assert "needs deepspeed.config" in done.err
