"""What the keys about saving and stopping demand of one another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs.jobfile.test_parse import parsed, refusal


def test_keys_that_agree() -> None:
    saving = {"every": 10, "keep_last": 2, "keep_every": 50, "best": "loss", "asynchronous": True}
    assert parsed(checkpoint=saving, time_limit="1d").checkpoint.keep_every == 50
    assert parsed(checkpoint={**saving, "thin_after": 2}).checkpoint.thin_after == 2
    assert parsed(checkpoint={"keep_last": 3, "thin_after": 2}).checkpoint.thin_after == 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"checkpoint": {"every": 10, "keep_every": 20}}, "without checkpoint.keep_last"),
        (
            {"checkpoint": {"keep_last": 1, "keep_every": 20}},
            "must be a multiple of checkpoint.every, which is not set",
        ),
        (
            {"checkpoint": {"every": 10, "keep_last": 1, "keep_every": 25}},
            "must be a multiple of checkpoint.every, which is 10",
        ),
        (
            {"checkpoint": {"keep_last": 2, "thin_after": 2}},
            "checkpoint.thin_after = 2: has no effect, because checkpoint.keep_last = 2 keeps "
            "no older checkpoint",
        ),
        (
            {"checkpoint": {"keep_last": 2, "thin_after": 2, "best": "loss"}},
            "has no effect, because checkpoint.keep_last = 2 keeps no older checkpoint",
        ),
        ({"checkpoint": {"thin_after": 0}}, "checkpoint.thin_after = 0"),
        ({"checkpoint": {"best": "lost"}}, 'checkpoint.best = "lost": must be one of "eval_loss"'),
        ({"checkpoint": {"best": "eval_loss"}}, "needs [eval] with files or a fraction"),
        (
            {
                "checkpoint": {"best": "eval_loss", "every": 10},
                "eval": {"fraction": 0.1, "every": 4},
            },
            "checkpoint.every, which is 10, must be a multiple of eval.every, which is 4",
        ),
        (
            {
                "checkpoint": {"asynchronous": True},
                "offload": {"optimizer": "disk", "path": "/scratch"},
            },
            'copies the optimizer state to host memory, but offload.optimizer = "disk"',
        ),
        (
            {"time_limit": "2 hours"},
            'time_limit = "2 hours": must be a number of seconds, or a time',
        ),
        ({"time_limit": 0}, "time_limit = 0: must be a number of seconds"),
        ({"train__stop_after_nan": 0}, "train.stop_after_nan = 0: must be at least 1"),
    ],
)
def test_keys_that_do_not_are_refused(changes: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(**changes)
