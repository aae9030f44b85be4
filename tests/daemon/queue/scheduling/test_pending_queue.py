"""A pass looks at few jobs, and comes to what looking at every one would."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.fake_gpu_probe import fake_gpu
from tests.daemon.queue.scheduling.deciding import BF16, LIMITS, decide, gpus, lease, seen, wants
from tests.daemon.queue.scheduling.plain_pass import plain_pass
from tests.matrices import examples
from zerotoolsd.queue.scheduling.pass_input import PassInput
from zerotoolsd.queue.scheduling.pending_queue import PendingQueue
from zerotoolsd.queue.scheduling.resource_requests import Request, ResourceNeed
from zerotoolsd.queue.scheduling.scheduler import run_pass

gpu_kinds = st.sampled_from(["free", "free", "leased", "ends", "ends later", "fenced", "busy"])
gpu_needs = st.builds(
    lambda gpus, bf16: ResourceNeed(
        world_size=gpus if isinstance(gpus, int) else len(gpus),
        gpus=gpus if isinstance(gpus, int) else tuple(gpus),
        capability=BF16 if bf16 else None,
    ),
    st.integers(1, 4) | st.lists(st.integers(0, 4), min_size=1, max_size=3),
    st.booleans(),
)
cpu_needs = st.builds(lambda size: ResourceNeed(world_size=size, gpus=None), st.integers(1, 5))
sizes = st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True).map(
    lambda each: tuple(sorted(each))
)
elastic_needs = st.builds(
    lambda sizes, gpus: ResourceNeed(
        world_size=sizes[0], gpus=sizes[0] if gpus else None, sizes=sizes
    ),
    sizes,
    st.booleans(),
)
lasting = st.none() | st.sampled_from([0.0, 5.0, 10.0, 20.0, 20.5, 30.0])


@given(st.data())
@settings(max_examples=examples(300))
def test_a_pass_comes_to_the_same_as_looking_at_every_job(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(gpu_kinds, max_size=5))
    weak = data.draw(st.integers(0, 3))
    machine = seen(
        *(
            fake_gpu(
                index,
                used_gib=9 if kind == "busy" else 0,
                compute_capability=(7, 0) if index < weak else (9, 0),
            )
            for index, kind in enumerate(kinds)
        )
    )
    leases = [
        lease(index, job_id=900 + index, held_by="pid 7" if kind == "fenced" else None)
        for index, kind in enumerate(kinds)
        if kind not in ("free", "busy")
    ]
    ends = {900 + i: 110.0 + i for i, kind in enumerate(kinds) if kind == "ends"}
    ends |= {900 + i: 120.0 for i, kind in enumerate(kinds) if kind == "ends later"}
    needs = data.draw(st.lists(gpu_needs | cpu_needs | elastic_needs, min_size=1, max_size=4))
    priorities = st.sampled_from([0, 0, 3, -10, 10])
    one = st.tuples(st.sampled_from(needs), lasting, priorities, st.integers(1, 3))
    asked = data.draw(st.lists(one, max_size=16))
    requests = [
        Request(job_id=i, need=need, lasts=lasts, priority=priority, uid=uid)
        for i, (need, lasts, priority, uid) in enumerate(asked)
    ]
    left_out = data.draw(st.sets(st.integers(0, 15), max_size=3))
    values: dict[str, Any] = {
        "now": 100.0,
        "snapshot": machine,
        "leases": leases,
        "cpu_ranks_used": data.draw(st.integers(0, 9)),
        "limits": LIMITS,
        "ends": ends,
    }
    looked_at: list[int] = []
    pending = PendingQueue(data.draw(st.permutations(requests)))
    pending.ranks = ranks = data.draw(st.sampled_from([{}, {1: 1, 2: 0, 3: 2}]))
    given = PassInput(passed_over=dict.fromkeys(left_out, "not now"), **values)
    found = run_pass(pending, given, looked_at.append)

    def place(each: Request) -> tuple[int, int, int]:
        rank = 0 if each.need.gpus is None else ranks.get(each.uid, 0)
        return -each.priority, rank, each.job_id

    in_turn = sorted(requests, key=place)
    for kind in (False, True):
        alike = [each for each in in_turn if (each.need.gpus is not None) == kind]
        for number, each in enumerate(alike, 1):
            assert pending.place_of(each.job_id) == (number, len(alike))
    starts, waits = plain_pass([r for r in in_turn if r.job_id not in left_out], **values)
    assert found.starts == starts
    assert found.waits == waits | {r.job_id: "not now" for r in requests if r.job_id in left_out}
    assert len(looked_at) == len(set(looked_at))


def test_of_ten_thousand_jobs_few_are_looked_at() -> None:
    requests = [
        dataclasses.replace(wants(i, 1 + i % 8), lasts=None if i % 3 else 60.0 * (1 + i % 7))
        for i in range(10_000)
    ]
    looked_at: list[int] = []
    values: dict[str, Any] = {"leases": [lease(i) for i in range(3)], "ends": {9: 500.0}}
    decisions = decide(requests, gpus(8), **values, touch=looked_at.append)
    values |= {"now": 100.0, "cpu_ranks_used": 0, "limits": LIMITS}
    starts, waits = plain_pass(requests, snapshot=gpus(8), **values)
    assert decisions.starts == starts
    assert [decisions.waits[i] for i in range(10, 10_000, 99)] == [
        waits[i] for i in range(10, 10_000, 99)
    ]
    assert len(looked_at) < 8 + 2 * len(starts)


def test_a_place_is_among_those_that_wait_for_the_same_kind_of_thing() -> None:
    two, one = ResourceNeed(world_size=2, gpus=2), ResourceNeed(world_size=1, gpus=1)
    cpu = ResourceNeed(world_size=1, gpus=None)
    needs = {1: two, 2: cpu, 3: one, 4: two, 5: cpu}
    pending = PendingQueue(Request(job_id=number, need=need) for number, need in needs.items())
    assert [pending.place_of(number) for number in (1, 3, 4)] == [(1, 3), (2, 3), (3, 3)]
    assert [pending.place_of(number) for number in (2, 5)] == [(1, 2), (2, 2)]
    assert pending.place_of(9) is None
