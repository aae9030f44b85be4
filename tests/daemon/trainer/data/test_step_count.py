import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.trainer.data.step_count import with_steps


def spec(**train: object) -> JobSpec:
    tree = {
        "device": "cpu",
        "model": {"config": {"model_type": "llama"}},
        "data": {"text": ["/a.txt"]},
        "train": {"batch_size": 8, **train},
    }
    return job_from_dict(tree, source="job.toml")


@pytest.mark.parametrize(("epochs", "steps"), [(1, 13), (2, 25), (0.5, 7), (0.001, 1)])
def test_epochs_become_steps_the_last_one_filled_up(epochs: float, steps: int) -> None:
    counted = with_steps(spec(epochs=epochs), sequences=100).train
    assert (counted.total_steps, counted.epochs) == (steps, None)


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
