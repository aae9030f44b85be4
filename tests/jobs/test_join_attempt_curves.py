from __future__ import annotations

import math
import time
from typing import Any

from zerotools.jobs.join_attempt_curves import MOST_SCORES, Curves, output_dirs_of


def step(number: int, **changes: Any) -> dict[str, Any]:
    """A step's message."""
    return {
        "event": "step",
        "step": number,
        "loss": 5.0 - number / 100,
        "rss_bytes": 2**30,
        **changes,
    }


def test_a_later_attempt_takes_the_place_of_the_steps_from_its_first_on() -> None:
    curves = Curves()
    curves.add_reports([step(n) for n in range(1, 9)])
    curves.add_reports([{"event": "resumed", "step": 3}, step(4, loss=0.5)])
    assert list(curves.loss) == [1, 2, 3, 4]
    assert curves.loss[4] == 0.5


def test_a_long_run_that_was_started_again_is_drawn_at_once() -> None:
    curves = Curves()
    many = [step(n) for n in range(1, 20_000)]
    curves.add_reports(many)
    began = time.process_time()
    curves.add_reports(many[10_000:])
    assert time.process_time() - began < 2
    assert len(curves.loss) == len(many)


def test_what_is_no_number_is_left_out() -> None:
    curves = Curves()
    strange: list[dict[str, Any]] = [
        step(1, loss=None),
        step(2, loss="1"),
        step(3, loss=True),
        step(4, loss=10**400),
        {"event": "step", "loss": 1.0},
        {"event": "step", "step": -1, "loss": 1.0},
        {"event": "eval", "step": 4, "loss": 0.25},
    ]
    curves.add_reports(strange)
    assert (curves.loss, curves.eval_loss) == ({}, {4: 0.25})
    assert list(curves.host_bytes) == [1, 2, 3, 4]


def test_what_is_not_finite_is_noted_apart() -> None:
    curves = Curves()
    curves.add_reports([step(1), step(2, loss=math.nan), step(3, loss=math.inf), step(4)])
    assert sorted(curves.loss) == [1, 4]
    assert sorted(curves.not_finite) == [2, 3]
    curves.add_reports([step(3)])
    assert sorted(curves.not_finite) == [2]


def test_scores_of_evaluations() -> None:
    curves = Curves()
    scores = {"rouge1": 41.5, "rougeL": 40.0, "bleu": 12.0, "tokenizer": "13a"}
    curves.add_reports([{"event": "eval", "step": 5, "loss": 1.5, "perplexity": 4.5, **scores}])
    assert (curves.rouge1, curves.rougeL, curves.bleu) == ({5: 41.5}, {5: 40.0}, {5: 12.0})
    assert (curves.perplexity, curves.rouge2, curves.loss) == ({5: 4.5}, {}, {})


def test_who_may_have_written_a_checkpoint() -> None:
    assert output_dirs_of("/a/run/step-00000004") == {"/a/run/step-00000004", "/a/run", "/a", "/"}
    assert output_dirs_of("/a/run/") == {"/a/run", "/a", "/"}


def test_scores_that_have_no_column_are_kept_by_name() -> None:
    curves = Curves()
    told = {"event": "eval", "step": 4, "time": 1e9, "rank": 0, "seconds": 2.0, "clock": 5.0}
    odd = {"mood": "good", "broken": math.nan, "huge": 10**400, "yes": True, "phase": "eval"}
    curves.add_reports([step(1), {**told, "loss": 2.0, "bleu": 30.0, "acc": 0.5, "a/f1": 1, **odd}])
    assert curves.scores == {"acc": {4: 0.5}, "a/f1": {4: 1.0}}
    assert (curves.score_time, curves.bleu) == ({4: 1e9}, {4: 30.0})
    curves.add_reports(
        [step(3)]
    )  # a later attempt takes the place of what comes after its first step
    assert curves.scores == {"acc": {}, "a/f1": {}}


def test_scores_by_another_job_leave_the_steps_alone() -> None:
    curves = Curves()
    curves.add_reports([step(n) for n in range(1, 6)])
    curves.add_scores([{"event": "eval", "step": 3, "loss": 9.0, "a/acc": 0.5}, step(2), {}])
    curves.add_scores([{"event": "eval", "step": 3, "a/acc": 0.75}, {"event": "eval", "a": 1}])
    assert curves.scores == {"a/acc": {3: 0.75}}
    assert (list(curves.loss), curves.eval_loss) == ([1, 2, 3, 4, 5], {})


def test_a_program_that_makes_up_names_is_cut_off() -> None:
    curves = Curves()
    for number in range(MOST_SCORES):
        curves.add_scores([{"event": "eval", "step": 1, f"a{number}": 1.0, f"b{number}": 1.0}])
    assert len(curves.scores) == MOST_SCORES
