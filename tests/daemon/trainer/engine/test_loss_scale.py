"""The loss scale, against what DeepSpeed's own scaler does with the same overflows."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.started import Started
from zerotools.jobs.tables.fp16 import Fp16Spec
from zerotools.runs.job_record import LossScaleRecord
from zerotoolsd.trainer.engine.loss_scale import after, initial, resumed
from zerotoolsd.trainer.rank.failures import Diverged

PEER = Path(__file__).with_name("deepspeed_scaler.py")
SHORT = Fp16Spec(initial_scale_power=4, loss_scale_window=3)


def run(scale: LossScaleRecord, overflows: str) -> LossScaleRecord:
    """The state after steps that overflowed (`x`) or did not (`.`)."""
    for step in overflows:
        scale = after(scale, overflow=step == "x")
    return scale


def test_the_second_overflow_halves_and_later_ones_at_once() -> None:
    scales = [run(initial(SHORT), overflows).cur_scale for overflows in ("", "x", "xx", "xxx")]
    assert scales == [16, 16, 8, 4]


def test_a_window_without_overflow_doubles_and_gives_the_hysteresis_back() -> None:
    grown = run(initial(SHORT), "xx...")
    assert (grown.cur_scale, grown.cur_hysteresis) == (8, 1)
    grown = run(grown, ".")
    assert (grown.cur_scale, grown.cur_hysteresis) == (16, 2)


def test_an_overflow_at_the_minimum_ends_the_run() -> None:
    with pytest.raises(Diverged, match="smallest loss scale, 4: training has diverged"):
        run(initial(replace(SHORT, min_loss_scale=4.0)), "xxxx")


def test_a_fixed_scale_stays() -> None:
    assert run(initial(Fp16Spec(loss_scale=128.0)), "xx.x").cur_scale == 128


def test_a_resumed_run_keeps_the_state_and_takes_the_rules_of_the_job_file() -> None:
    saved = run(initial(SHORT), "x..x.")
    assert resumed(SHORT, saved) == saved
    found = resumed(replace(SHORT, loss_scale_window=7, hysteresis=1, min_loss_scale=2.0), saved)
    assert found == replace(saved, scale_window=7, delayed_shift=1, min_scale=2.0)
    fixed = Fp16Spec(loss_scale=8.0)
    assert resumed(fixed, saved) == initial(fixed)
    assert resumed(SHORT, initial(fixed)) == resumed(SHORT, None) == initial(SHORT)


@dataclass(frozen=True)
class Peer:
    """A process that runs DeepSpeed's scaler."""

    asks: IO[str]
    answers: IO[str]

    def trace(self, options: dict[str, Any], overflows: list[bool]) -> list[Any]:
        """What it did."""
        print(json.dumps({"options": options, "overflows": overflows}), file=self.asks, flush=True)
        found: list[Any] = json.loads(self.answers.readline())
        return found


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    with Started(
        [sys.executable, str(PEER)],
        kept=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while (line := process.stdout.readline()) != "ready\n":
            assert line, "DeepSpeed's scaler did not start"
        yield Peer(process.stdin, process.stdout)
        process.stdin.close()
    assert process.returncode == 0


def ours(spec: Fp16Spec, overflows: list[bool]) -> list[Any]:
    scale, seen = initial(spec), []
    for overflow in overflows:
        try:
            scale = after(scale, overflow=overflow)
        except Diverged:
            return [*seen, "raised"]
        numbers = (scale.cur_scale, scale.cur_iter, scale.last_overflow_iter, scale.cur_hysteresis)
        seen.append(list(numbers))
    return seen


SPECS = st.builds(
    Fp16Spec,
    initial_scale_power=st.integers(0, 20),
    loss_scale_window=st.integers(1, 5),
    hysteresis=st.integers(1, 4),
    consecutive_hysteresis=st.booleans(),
    min_loss_scale=st.sampled_from([0.25, 1.0, 3.0]),
).filter(lambda spec: spec.min_loss_scale <= 2.0**spec.initial_scale_power)
BITS = st.integers(0, 2**100 - 1)
OVERFLOWS = st.lists(BITS, min_size=1, max_size=3).map(
    lambda numbers: [bit == "1" for bit in f"{reduce(and_, numbers):0100b}"]
)
"""In half of the steps, in a quarter, or in an eighth."""


GOLDEN = [json.loads(line) for line in PEER.with_suffix(".jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", GOLDEN, ids=[str(number) for number in range(len(GOLDEN))])
def test_steps_are_those_that_deepspeed_took(case: dict[str, Any]) -> None:
    options = case["options"]
    spec = Fp16Spec(
        initial_scale_power=int(math.log2(options["init_scale"])),
        loss_scale_window=options["scale_window"],
        hysteresis=options["delayed_shift"],
        consecutive_hysteresis=options["consecutive_hysteresis"],
        min_loss_scale=options["min_scale"],
    )
    assert ours(spec, case["overflows"]) == case["answer"]


@pytest.mark.full
@pytest.mark.deepspeed
@settings(max_examples=200)
@given(spec=SPECS, overflows=OVERFLOWS)
def test_every_step_is_deepspeeds(peer: Peer, spec: Fp16Spec, overflows: list[bool]) -> None:
    options = {
        "init_scale": 2.0**spec.initial_scale_power,
        "scale_window": spec.loss_scale_window,
        "min_scale": spec.min_loss_scale,
        "delayed_shift": spec.hysteresis,
        "consecutive_hysteresis": spec.consecutive_hysteresis,
    }
    assert ours(spec, overflows) == peer.trace(options, overflows)
