"""A job that is stopped at any place holds up no other job on the same data."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.launching import TINY_LLAMA, Attempt, job, start
from tests.daemon.trainer.finetuning import VOCABULARY, make_tokenizer
from tests.daemon.waiting import wait_for
from zerotoolsd.trainer.data.token_cache import DIRECTORY, MOST_BYTES

pytestmark = [pytest.mark.torch, pytest.mark.full]
PLACES = {
    "tokenizing": "zerotoolsd.trainer.data.tokenize_sources:tokenize",
    "looking into the cache": "zerotoolsd.trainer.data.token_cache:TokenCache.entry",
    "opening the data": "zerotoolsd.trainer.data.training_data:DataReading._opened",
    "loading the model": "zerotoolsd.trainer.prepare_and_train:make_engine",
    "the first step": "zerotoolsd.trainer.loop:TrainingRun.train",
    "saving": "zerotoolsd.trainer.save_during_training:Checkpointing.save",
}
PROGRAM = Path(__file__).with_name("stopped_rank.py")


def wait_until_stopped(attempt: Attempt) -> None:
    [rank] = attempt.processes

    def is_stopped() -> bool:
        assert rank.poll() is None, attempt.log()
        return psutil.Process(rank.pid).status() == psutil.STATUS_STOPPED

    wait_for(is_stopped, "the rank to stop", deadline=120.0)


def test_a_job_that_is_stopped_anywhere_holds_no_other_up(tmp_path: Path, text: Path) -> None:
    cache = {DIRECTORY: str(tmp_path / "cache"), MOST_BYTES: str(1 << 30)}
    tree: dict[str, Any] = job(
        text,
        model={"config": {**TINY_LLAMA, "vocab_size": VOCABULARY}},
        data={"tokenizer": str(make_tokenizer(tmp_path / "tokenizer"))},
        train={"steps": 2},
    )
    stopped: dict[str, Attempt] = {}
    for name, place in PLACES.items():
        env = {**cache, "STOP_AT": place}
        attempt = start(tmp_path / place.partition(":")[2], {**tree, "env": env}, script=PROGRAM)
        wait_until_stopped(attempt)
        stopped[name] = attempt
        # The first waits until the stopped one has not written for a time, and tokenises itself.
        if name in ("tokenizing", "saving"):
            other = start(tmp_path / f"beside {name}", {**tree, "env": cache})
            assert other.finish() == [0], other.log()
    for name, attempt in stopped.items():
        [rank] = attempt.processes
        os.kill(rank.pid, signal.SIGCONT)
        assert attempt.finish() == [0], (name, attempt.log())
        assert attempt.losses() == other.losses(), name
