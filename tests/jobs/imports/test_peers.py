"""The peers agree: on what "auto" becomes, on the keys there are, on what a config may be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.imports.jobs import JOB, a_job, ds
from zerotools.jobs.imports.deepspeed import CLIPPING
from zerotools.jobs.imports.deepspeed_keys import KEYS, SECTIONS

pytestmark = pytest.mark.deepspeed


def ask(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "tests.jobs.imports.peers", *arguments],
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rsplit("\n", 1)[1])


def test_the_trainer_resolves_every_auto_to_the_same() -> None:
    job = JOB + "batch_size = 16\nmicro_batch_size = 4\nlearning_rate = 1e-4\n"
    assert ds("zero3_auto.json", a_job(job)).deepspeed == ask("trainer")


def test_the_table_has_every_field_of_deepspeed_with_its_default() -> None:
    fields = ask("fields")
    assert sorted(set(fields) - set(KEYS) - SECTIONS) == []
    differing = {
        name: (KEYS[name].default, default)
        for name, default in fields.items()
        if name in KEYS and KEYS[name].default is not None and default is not None
        if KEYS[name].default != default
    }
    assert differing == {}


def test_deepspeed_clips_without_being_told() -> None:
    assert ask("clipping") == CLIPPING


# With the number of ranks on which DeepSpeed's own check of the batch sizes holds.
TAKEN = {
    "zero3_auto.json": JOB.replace("gpus = 2", "gpus = 1") + "batch_size = 8\n",
    "two_cards_stage2.json": JOB.replace("gpus = 2", "gpus = 1"),
}


def test_deepspeed_takes_what_it_would_be_given(tmp_path: Path) -> None:
    for name, job in TAKEN.items():
        (tmp_path / name).write_text(json.dumps(ds(name, a_job(job)).deepspeed))
    assert ask("accepts", *(str(tmp_path / name) for name in TAKEN)) == ["", ""]
