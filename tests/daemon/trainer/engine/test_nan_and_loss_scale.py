"""One divergence policy: what both engines make of the same numbers, step by step."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.launching import job
from harness.started import Started
from tests.matrices import examples
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.fp16 import Fp16Spec
from zerotools.runs.training_record import LossScaleRecord
from zerotoolsd.trainer.data.example_pools import Example, RankBatch
from zerotoolsd.trainer.engine.nan_and_loss_scale import (
    initial_loss_scale,
    loss_scale_after,
    resumed_loss_scale,
)
from zerotoolsd.trainer.rank.rank_errors import Diverged
from zerotoolsd.trainer.rank.rank_settings import Rank

pytestmark = pytest.mark.torch

NAN, INF = math.nan, math.inf
UPDATE, SKIP = "update", "skip"
FINE = (1.0, 1.0)
LOWER = "lower train.learning_rate or lengthen"
Numbers = Sequence[tuple[float, float]]
"""(loss, gradient norm) of each step."""

BOTH: dict[str, tuple[str, float, Numbers, list[str]]] = {
    "finite": ("fp32", 0, [FINE, FINE], [UPDATE, UPDATE]),
    "loss of the first step": ("fp32", 0, [(NAN, NAN)], ["the loss of step 1 is nan, before any"]),
    "loss": ("bf16", 0, [FINE, (NAN, NAN)], [UPDATE, f"the loss of step 2 is nan: .*{LOWER}"]),
    "norm": ("bf16", 0, [(1.0, NAN)], [f"the gradient norm of step 1 is nan: .*{LOWER}"]),
    "overflow": ("fp16", 0, [FINE, (1.0, NAN), FINE], [UPDATE, SKIP, UPDATE]),
    "20 overflows at a fixed scale": (
        "fp16",
        64.0,
        [(1.0, NAN)] * 20,
        [
            *[SKIP] * 19,
            r"overflowed in 20 steps in a row at fp16\.loss_scale = 64: lower fp16.loss_scale",
        ],
    ),
    "19 overflows and a step": (
        "fp16",
        64.0,
        [*[(1.0, NAN)] * 19, FINE, (1.0, NAN)],
        [*[SKIP] * 19, UPDATE, SKIP],
    ),
    "overflow at the smallest scale": (
        "fp16",
        0,
        [(1.0, NAN)] * 3,
        [SKIP, SKIP, "overflow at the smallest loss scale, 1: training has diverged"],
    ),
}
BATCH = RankBatch([Example([1, 2], [2, 3])], predicted=2, tokens=2)


class Model:
    """Says what makes the loss that is wanted."""

    loss = 1.0

    def __init__(self) -> None:
        from transformers import LlamaConfig

        self.config = LlamaConfig(attn_implementation="sdpa")

    def __call__(self, **_: Any) -> Any:
        import torch

        logits = torch.zeros((1, 2, 4), requires_grad=True)
        return SimpleNamespace(logits=logits if math.isfinite(self.loss) else logits + self.loss)

    def set_requires_gradient_sync(self, _: bool) -> None:
        pass


class Optimizer:
    """Engine torch's, of given norms; `seen` is what it was told to do."""

    def __init__(self) -> None:
        self.grad_norm, self.seen = 1.0, ""
        self.update_path = SimpleNamespace(forget=lambda _: None, received=list)

    def norm(self) -> Any:
        import torch

        return torch.tensor(self.grad_norm)

    def step(self, rate: float, **_: float) -> None:
        self.seen = UPDATE

    def discard(self) -> None:
        self.seen = SKIP


class Scaler:
    """DeepSpeed's engine, in so far as it decides: it skips where gradients overflow in fp16."""

    lr_scheduler = None

    def __init__(self, fp16: bool, scale: float, dynamic: bool) -> None:
        self._fp16, self._dynamic = fp16, dynamic
        self.optimizer = SimpleNamespace(cur_scale=scale, param_groups=[])
        self.module = self._model = Model()
        self.skipped_steps, self.grad_norm, self.seen = 0, 1.0, ""

    def __call__(self, **arguments: Any) -> Any:
        return self._model(**arguments)

    def train_micro_batch_size_per_gpu(self) -> int:
        return 1

    def backward(self, _: Any) -> None:
        pass

    def fp16_enabled(self) -> bool:
        return self._fp16

    def get_global_grad_norm(self) -> float:
        return self.grad_norm if math.isfinite(self.grad_norm) else -1.0

    def step(self) -> None:
        self.seen = SKIP if self._fp16 and not math.isfinite(self.grad_norm) else UPDATE
        if self.seen == SKIP:
            self.skipped_steps += 1
            if self._dynamic and self.optimizer.cur_scale == 1:
                raise Exception("Current loss scale already at minimum - cannot decrease scale.")
            self.optimizer.cur_scale /= 2 if self._dynamic else 1


def total_of(values: Any, own: Any) -> tuple[list[float], float]:
    return values.tolist(), own.item()


GROUP: Any = SimpleNamespace(
    rank=Rank(0, 0, 1), device="cpu", total=lambda values: values, total_of=total_of
)


def engine_torch(text: Path, precision: str, scale: float, stop_after_nan: int = 1) -> Any:
    """(the engine, its model, what says the norm and sees whether the weights are updated)."""
    from zerotoolsd.trainer.engine_torch.engine import TorchEngine

    train = {"precision": precision, "stop_after_nan": stop_after_nan}
    fp16 = {"fp16": {"loss_scale": scale} if scale else SMALL} if precision == "fp16" else {}
    env = {"env": {"ZEROTOOLS_FP16_ON_CPU": "1"}} if fp16 else {}
    spec = job_from_dict(job(text, train=train, **fp16, **env), source="job")
    model, optimizer = Model(), Optimizer()
    layout = SimpleNamespace(accumulate="local", is_sharded=False)
    experts = SimpleNamespace(untaken=lambda _: ())
    live: Any = SimpleNamespace(model=model, optimizer=optimizer, layout=layout, experts=experts)
    return TorchEngine(spec, live, GROUP), model, optimizer


SMALL = {"initial_scale_power": 2, "min_loss_scale": 1.0, "hysteresis": 1}
"""A scale that two overflows bring down from 4 to the smallest."""


def engine_deepspeed(text: Path, precision: str, scale: float) -> Any:
    from zerotoolsd.trainer.engine_deepspeed.engine import DeepSpeedEngine

    fake = Scaler(precision == "fp16", scale or 4.0, dynamic=not scale)
    config = {"zero_optimization": {"stage": 1}, "fp16": {"loss_scale": scale}}
    spec = job_from_dict(job(text), source="job")
    files: Any = None
    return DeepSpeedEngine(spec, config, GROUP, fake, files, ()), fake.module, fake


def decisions(engine: Any, model: Model, weights: Any, numbers: Numbers) -> list[str]:
    """What becomes of each step: UPDATE, SKIP, or the message that the run ends with."""
    from zerotoolsd.trainer.rank.rank_errors import Diverged

    found: list[str] = []
    for step, (loss, norm) in enumerate(numbers):
        model.loss, weights.grad_norm, weights.seen = loss, norm, ""
        try:
            outcome = engine.step(BATCH, step, lambda: False)
        except Diverged as error:
            return [*found, str(error)]
        assert weights.seen == (SKIP if outcome.is_skipped else UPDATE)
        found.append(weights.seen)
    return found


@pytest.mark.parametrize("make", [engine_torch, engine_deepspeed])
@pytest.mark.parametrize("name", BOTH)
def test_both_engines_decide_alike(name: str, make: Any, text: Path) -> None:
    precision, scale, numbers, expected = BOTH[name]
    found = decisions(*make(text, precision, scale), numbers)
    assert len(found) == len(expected), found
    for each, pattern in zip(found, expected, strict=True):
        assert re.search(pattern, each), (each, pattern)


def test_engine_torch_skips_up_to_stop_after_nan(text: Path) -> None:
    numbers = [(1.0, NAN), (NAN, NAN), FINE, (1.0, INF), (1.0, NAN), (1.0, INF)]
    found = decisions(*engine_torch(text, "bf16", 0, stop_after_nan=3), numbers)
    assert found[:-1] == [SKIP, SKIP, UPDATE, SKIP, SKIP]
    assert found[-1].startswith(
        "after 2 skipped steps in a row, the gradient norm of step 6 is inf"
    )


def test_what_deepspeed_has_updated_cannot_be_skipped(text: Path) -> None:
    """It looks at gradients alone; engine torch looks at the loss too, before it updates."""
    numbers = [(NAN, 1.0)]
    assert decisions(*engine_torch(text, "fp16", 0), numbers) == [SKIP]
    [found] = decisions(*engine_deepspeed(text, "fp16", 0), numbers)
    assert found.startswith("the loss of step 1 is nan")


PEER = Path(__file__).with_name("deepspeed_scaler.py")
SHORT = Fp16Spec(initial_scale_power=4, loss_scale_window=3)


def run(scale: LossScaleRecord, overflows: str) -> LossScaleRecord:
    """The state after steps that overflowed (`x`) or did not (`.`)."""
    for step in overflows:
        scale = loss_scale_after(scale, overflow=step == "x")
    return scale


def test_the_second_overflow_halves_and_later_ones_at_once() -> None:
    scales = [
        run(initial_loss_scale(SHORT), overflows).cur_scale for overflows in ("", "x", "xx", "xxx")
    ]
    assert scales == [16, 16, 8, 4]


def test_a_window_without_overflow_doubles_and_gives_the_hysteresis_back() -> None:
    grown = run(initial_loss_scale(SHORT), "xx...")
    assert (grown.cur_scale, grown.cur_hysteresis) == (8, 1)
    grown = run(grown, ".")
    assert (grown.cur_scale, grown.cur_hysteresis) == (16, 2)


def test_an_overflow_at_the_minimum_ends_the_run() -> None:
    with pytest.raises(Diverged, match="smallest loss scale, 4: training has diverged"):
        run(initial_loss_scale(replace(SHORT, min_loss_scale=4.0)), "xxxx")


def test_a_fixed_scale_stays() -> None:
    assert run(initial_loss_scale(Fp16Spec(loss_scale=128.0)), "xx.x").cur_scale == 128


def test_a_resumed_run_keeps_the_state_and_takes_the_rules_of_the_job_file() -> None:
    saved = run(initial_loss_scale(SHORT), "x..x.")
    assert resumed_loss_scale(SHORT, saved) == saved
    found = resumed_loss_scale(
        replace(SHORT, loss_scale_window=7, hysteresis=1, min_loss_scale=2.0), saved
    )
    assert found == replace(saved, scale_window=7, delayed_shift=1, min_scale=2.0)
    fixed = Fp16Spec(loss_scale=8.0)
    assert resumed_loss_scale(fixed, saved) == initial_loss_scale(fixed)
    assert (
        resumed_loss_scale(SHORT, initial_loss_scale(fixed))
        == resumed_loss_scale(SHORT, None)
        == initial_loss_scale(SHORT)
    )


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
    scale, seen = initial_loss_scale(spec), []
    for overflow in overflows:
        try:
            scale = loss_scale_after(scale, overflow=overflow)
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
@settings(max_examples=examples(200))
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
