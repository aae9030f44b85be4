from dataclasses import replace

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.jobfile_tables.train import TrainSpec
from zerotools.runs.training_record import JobRecord, ModelRecord, OptimizerRecord
from zerotoolsd.trainer.engine.learning_rate import (
    decay_steps,
    learning_rate,
    schedule_changes,
    schedule_of,
    with_steps,
)

COSINE = TrainSpec(
    steps=11,
    batch_size=1,
    learning_rate=1.0,
    min_learning_rate=0.1,
    warmup_steps=2,
    schedule_form="zerotools-0.2",
)


@pytest.mark.torch
@pytest.mark.parametrize("warmup", [0, 1, 3, 8])
@pytest.mark.parametrize(
    ("schedule", "name", "options"),
    [
        ("linear", "linear", {}),
        ("cosine", "cosine", {}),
        ("cosine", "cosine_with_min_lr", {"min_lr": 0.1}),
        ("constant", "constant_with_warmup", {}),
        ("wsd", "warmup_stable_decay", {"num_decay_steps": 3}),
        ("wsd", "warmup_stable_decay", {"num_decay_steps": 3, "min_lr_ratio": 0.05}),
    ],
)
def test_each_step_has_the_rate_of_transformers(
    schedule: str, name: str, options: dict[str, float], warmup: int
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    floor = options.get("min_lr", 2.0 * options.get("min_lr_ratio", 0.0))
    for steps in (1, 2, 11):
        if warmup + options.get("num_decay_steps", 0) > steps:
            continue
        train = TrainSpec(
            steps=steps,
            batch_size=1,
            learning_rate=2.0,
            min_learning_rate=floor,
            warmup_steps=warmup,
            schedule=schedule,
            decay_steps=3 if schedule == "wsd" else None,
        )
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
        peer = transformers.get_scheduler(
            name, optimizer, warmup, steps, scheduler_specific_kwargs=options or None
        )
        for step in range(steps):
            assert learning_rate(train, step) == pytest.approx(peer.get_last_lr()[0], abs=1e-12)
            optimizer.step()
            peer.step()


def test_a_record_without_a_form_is_of_the_old_one() -> None:
    before = {name: value for name, value in schedule_of(COSINE).items() if name != "form"}
    assert schedule_changes(before, schedule_of(COSINE)) == ""
    now = schedule_of(replace(COSINE, schedule_form="transformers"))
    told = "train.schedule_form is transformers, and was zerotools-0.2"
    assert schedule_changes(before, now) == told


def test_warm_up_is_linear_and_reaches_the_peak_when_it_ends() -> None:
    assert [learning_rate(COSINE, step) for step in range(3)] == [0.5, 1.0, 1.0]


def test_cosine_is_halfway_in_the_middle_and_lowest_at_the_last_step() -> None:
    assert learning_rate(COSINE, 6) == pytest.approx(0.55)
    assert learning_rate(COSINE, 10) == pytest.approx(0.1)


def test_the_rate_stays_at_the_lowest_beyond_the_last_step() -> None:
    assert learning_rate(COSINE, 50) == pytest.approx(0.1)


def test_constant_keeps_the_peak() -> None:
    constant = replace(COSINE, schedule="constant")
    assert {learning_rate(constant, step) for step in range(2, 11)} == {1.0}


def test_linear_falls_by_as_much_each_step() -> None:
    linear = replace(COSINE, schedule="linear")
    rates = [learning_rate(linear, step) for step in range(1, 12)]
    assert rates == pytest.approx([1, 1, *(1 - 0.9 * n / 8 for n in range(1, 9)), 0.1])


def test_wsd_stays_and_then_falls() -> None:
    wsd = replace(COSINE, schedule="wsd", decay_steps=3)
    rates = [learning_rate(wsd, step) for step in range(12)]
    assert rates == pytest.approx([0.5, *[1] * 7, 0.7, 0.4, 0.1, 0.1])


@pytest.mark.parametrize(("steps", "warmup", "decay"), [(100, 5, 10), (9, 2, 1), (4, 4, 1)])
def test_wsd_falls_in_the_last_tenth(steps: int, warmup: int, decay: int) -> None:
    wsd = replace(COSINE, schedule="wsd", steps=steps, warmup_steps=warmup)
    assert decay_steps(wsd) == decay


def test_one_step_without_warm_up_has_the_peak() -> None:
    assert learning_rate(replace(COSINE, steps=1, warmup_steps=0), 0) == 1.0


def test_another_schedule_is_told_with_what_it_was() -> None:
    train = replace(COSINE, steps=60)
    before = schedule_of(train)
    assert schedule_changes(before, before) == ""
    assert schedule_changes({}, before) == ""  # the record does not say
    now = schedule_of(replace(train, steps=80, schedule="linear"))
    told = "train.schedule is linear, and was cosine, train.steps is 80, and was 60"
    assert schedule_changes(before, now) == told
    constant = replace(train, schedule="constant")
    assert schedule_changes(schedule_of(constant), schedule_of(replace(constant, steps=80))) == ""


def spec(**train: object) -> JobSpec:
    tree = {
        "device": "cpu",
        "model": {"config": {"model_type": "llama"}},
        "data": {"text": ["/a.txt"]},
        "train": {"batch_size": 8, **train},
    }
    return job_from_dict(tree, source="job.toml")


def saved_at(step: int, size: int, *, total: int) -> JobRecord:
    """The record of a checkpoint of step `step`, of a run whose steps had `size` sequences."""
    return JobRecord(
        step=step,
        steps_total=total,
        world_size=1,
        stage=0,
        precision="fp32",
        seed=0,
        consumed_sequences=step * size,
        batch_size=max(1, size),
        sequence_length=8,
        optimizer=OptimizerRecord("adamw", ()),
        model=ModelRecord(1, 0),
    )


@pytest.mark.parametrize(("epochs", "steps"), [(1, 13), (2, 25), (0.5, 7), (0.001, 1)])
def test_epochs_become_steps_the_last_one_filled_up(epochs: float, steps: int) -> None:
    counted = with_steps(spec(epochs=epochs), sequences=100).train
    assert (counted.total_steps, counted.epochs) == (steps, None)


@pytest.mark.parametrize(
    ("saved", "steps"),
    [
        (saved_at(5, 8, total=25), 25),
        (saved_at(5, 16, total=13), 5 + 15),
        (saved_at(12, 4, total=50), 12 + 19),
        (saved_at(10, 12, total=20), 20),  # two sizes: 5 steps of 16 and 5 of 8
        (saved_at(13, 16, total=13), 13),
        (replace(saved_at(5, 0, total=5), made_from="FSDP"), 25),
        (saved_at(7, 4, total=25), 25),  # 3 steps of another program, which read nothing of ours
    ],
)
def test_steps_of_another_batch_size_count_as_what_they_read(saved: JobRecord, steps: int) -> None:
    assert with_steps(spec(epochs=2), sequences=100, saved=saved).train.total_steps == steps


def test_steps_stay() -> None:
    assert with_steps(spec(steps=5), sequences=100) == spec(steps=5)


def test_a_warm_up_that_is_longer_than_the_epochs_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"warmup_steps = 14: must be at most .* 13 \(1 epochs of"):
        with_steps(spec(epochs=1, warmup_steps=14), sequences=100)


@pytest.mark.parametrize(
    ("length", "ratio", "warmup"), [({"steps": 50}, 0.03, 2), ({"epochs": 2}, 0.1, 2)]
)
def test_a_part_of_all_steps_is_the_warm_up(
    length: dict[str, int], ratio: float, warmup: int
) -> None:
    counted = with_steps(spec(**length, warmup_ratio=ratio), sequences=80).train
    assert (counted.warmup_steps, counted.warmup_ratio, counted.epochs) == (warmup, 0.0, None)
