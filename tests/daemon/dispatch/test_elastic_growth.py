"""The rule by which elastic jobs take more, and what they ask the scheduler for."""

from __future__ import annotations

from dataclasses import replace

from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.dispatch.elastic_growth import (
    GrowthRule,
    RunningSize,
    decide_growth,
    growth_request,
    why_it_grows,
)
from zerotoolsd.queue.scheduling.pass_input import PassInput
from zerotoolsd.queue.scheduling.pending_queue import PendingQueue
from zerotoolsd.queue.scheduling.resource_requests import Request, ResourceNeed
from zerotoolsd.queue.scheduling.scheduler import Start, run_pass

RULE = GrowthRule(after_seconds=300, factor=5)
SIZES = (1, 2, 4)
RUNS = RunningSize(size=1, ran_seconds=400, left=1000, cost=100)
ELASTIC = Request(
    job_id=7, need=ResourceNeed(world_size=1, gpus=None, host_bytes=9, sizes=SIZES), priority=2
)


def test_a_size_is_worth_its_change_where_it_saves_a_multiple_of_the_cost() -> None:
    # 500 s and 750 s, of which 500 s are asked
    assert decide_growth(RUNS, SIZES, RULE).sizes == (2, 4)
    assert decide_growth(replace(RUNS, cost=101), SIZES, RULE).sizes == (4,)
    too_dear = decide_growth(replace(RUNS, cost=151), SIZES, RULE)
    assert too_dear.sizes == ()
    assert too_dear.why == (
        "keeps its 1 rank: 4 ranks would save 750 s of the 1000 s left; a change costs 151 s, and "
        "must save at least 5 times as much (elastic.gain)"
    )
    assert why_it_grows(RUNS, 2) == (
        "grows from 1 to 2 ranks: that saves 500 s of the 1000 s left, and the change costs 100 s"
    )


def test_an_attempt_keeps_its_size_for_a_while_and_where_nothing_is_known_of_it() -> None:
    early = decide_growth(replace(RUNS, ran_seconds=100), SIZES, RULE)
    assert (early.sizes, early.wait) == ((), 200)
    assert early.why.startswith("keeps its 1 rank for 200 s more")
    assert decide_growth(replace(RUNS, left=None), SIZES, RULE).sizes == ()
    assert decide_growth(replace(RUNS, size=4), SIZES, RULE).why == "has 4 ranks, its maximum"


def starts(*requests: Request, used: int) -> list[Start]:
    pending, limits = PendingQueue(requests), LimitsConfig(cpu_ranks=8)
    given = PassInput(now=0, snapshot=None, leases=(), cpu_ranks_used=used, limits=limits)
    return list(run_pass(pending, given).starts)


def test_it_asks_for_more_last_of_all_and_in_its_place_while_it_saves() -> None:
    behind = Request(job_id=9, need=ResourceNeed(world_size=3, gpus=None), priority=-10)
    asks = growth_request(ELASTIC, 1, (2, 4), keeps=False)
    assert asks.need == ResourceNeed(world_size=1, gpus=None, sizes=(1, 3))
    assert starts(asks, used=5) == [Start(job_id=7, size=3)]
    assert starts(asks, used=6) == [Start(job_id=7, size=1)]
    assert starts(asks, behind, used=5) == [Start(job_id=9)]
    assert starts(asks, behind, used=6) == []  # the two that are free are kept for job 9
    saves = growth_request(ELASTIC, 1, (2, 4), keeps=True)
    assert starts(saves, behind, used=5) == [Start(job_id=7, size=3)]
