"""The page joins curves as the daemon does: whoever looks on sees what a page loaded anew shows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.daemon.daemons import Daemon
from tests.daemon.http.web.visits import script, visiting
from zerotools.jobs.join_attempt_curves import OF_EVALUATIONS, OF_STEPS
from zerotoolsd.http.api.responses import json_text
from zerotoolsd.service.downsample_curves import RunCurves, StepRecords

pytestmark = pytest.mark.browser
JOB, MOST = 3, 5000

LOSSES = st.sampled_from([4.5, 2.0, 0.25, 1e-9, math.nan, math.inf, "x"])
NAMES = ("lr", "grad_norm", "time", "bleu", "accuracy", "arc/acc", "constructor")
MORE = st.dictionaries(st.sampled_from(NAMES), LOSSES, max_size=3)
STEPS = st.builds(
    lambda event, step, loss, more: {"event": event, "step": step, **loss, **more},
    st.sampled_from(["step", "step", "step", "eval"]),
    st.one_of(st.integers(0, 12), st.sampled_from([-1, "7", None])),
    st.one_of(st.just({}), LOSSES.map(lambda loss: {"loss": loss})),
    MORE,
)
SAVED = st.builds(
    lambda step, path, how: {"event": "checkpoint", "step": step, "path": path, "verified": how},
    st.integers(0, 12),
    st.sampled_from(["/a", "/b", None]),
    st.sampled_from(["at_save", None]),
)
ATTEMPTS = st.lists(st.lists(st.one_of(STEPS, STEPS, SAVED), max_size=12), min_size=1, max_size=3)


@dataclass
class Case:
    """What is given to the page, and what the daemon makes of all of it, but for steps of which it
    knew no loss before: it left them out."""

    given: dict[str, Any]
    expected: dict[str, Any]
    left_out: set[int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A page that is loaded while the newest attempt has reported some of its steps."""
    attempts, weight = draw(ATTEMPTS), draw(st.sampled_from([0.0, 0.6, 0.99]))
    newest = attempts[-1]
    first, second = sorted(draw(st.integers(0, len(newest))) for _ in range(2))
    before, whole = RunCurves(), RunCurves()
    for number, records in enumerate(attempts[:-1], 1):
        for run in (before, whole):
            run.add(JOB, number, 1, StepRecords(records))
    before.add(JOB, len(attempts), 1, StepRecords(newest[:first]))
    whole.add(JOB, len(attempts), 1, StepRecords(newest))
    of = {"job": JOB, "attempt": len(attempts)}
    parts = [{"records": part, "of": of} for part in (newest[first:second], newest[second:])]
    tree = before.to_json(MOST)
    told = {step for name in (*OF_STEPS, *OF_EVALUATIONS) for step in getattr(before.curves, name)}
    left_out = told - {*before.curves.loss, *before.curves.eval_loss}
    given = {"before": tree, "parts": parts, "weight": weight}
    return Case(given, whole.to_json(MOST), left_out)


def points(columns: dict[str, list[Any]]) -> dict[str, dict[int, Any]]:
    """The values that there are, by name and step."""
    steps = columns["step"]
    assert steps == sorted(set(steps))
    found = {
        name: {step: value for step, value in zip(steps, values, strict=True) if value is not None}
        for name, values in columns.items()
        if name != "step"
    }
    return {name: values for name, values in found.items() if values}


def same_points(shown: dict[str, Any], told: dict[str, Any], of: str, left_out: set[int]) -> None:
    """The daemon leaves out steps of which it knows no loss, where it knows any."""
    known = set(points(shown).get(of, {})) - left_out
    if known:
        assert only(points(shown), known) == only(points(told), known)
        assert known == set(points(told)[of]) - left_out


def only(columns: dict[str, dict[int, Any]], steps: set[int]) -> dict[str, dict[int, Any]]:
    found = {n: {s: v for s, v in c.items() if s in steps} for n, c in columns.items()}
    return {name: values for name, values in found.items() if values}


def smoothed(values: list[float | None], weight: float) -> list[float | None]:
    """Kingma and Ba 2015, section 3, as a sum: each value counts `weight` times less with each
    that follows."""
    found: list[float | None] = []
    for number, value in enumerate(values):
        known = [each for each in values[: number + 1] if each is not None]
        shares = [weight ** (len(known) - 1 - place) for place in range(len(known))]
        mean = sum(s * v for s, v in zip(shares, known, strict=True)) / (sum(shares) or 1.0)
        found.append(None if value is None else mean)
    return found


def test_the_page_joins_and_smooths_as_the_daemon_does(browser: Any, daemon: Daemon) -> None:
    found: list[Case] = []

    @settings(
        max_examples=300,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    with visiting(browser, daemon) as visit:
        sent = f"[{', '.join(json_text(case.given) for case in found)}]"
        shown = visit.page.evaluate(
            f"async (cases) => ({script('joined')})(JSON.parse(cases))", sent
        )
    for case, each in zip(found, shown, strict=True):
        curves, expected = each["curves"], case.expected
        same_points(curves["steps"], expected["steps"], "loss", case.left_out)
        same_points(curves["evaluations"], expected["evaluations"], "eval_loss", case.left_out)
        assert points(curves["scores"]) == points(expected["scores"])
        assert sorted(curves["not_finite"]) == expected["not_finite"]
        kept = ("job", "attempt", "first_step")
        assert [[part[name] for name in kept] for part in curves["parts"]] == [
            [part[name] for name in kept] for part in expected["parts"]
        ]
        said = [(each["path"], each["step"], each["verified"]) for each in curves["checkpoints"]]
        assert said == [(e["path"], e["step"], e["verified"]) for e in expected["checkpoints"]]
        losses = curves["steps"].get("loss", [])
        assert each["smoothed"] == [
            None if value is None else pytest.approx(value)
            for value in smoothed(losses, case.given["weight"])
        ]
