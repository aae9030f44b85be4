"""The memory layout that a job asks for."""

from __future__ import annotations

import pytest

from tests.jobs.jobfile.test_parse import parsed
from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of
from zerotools.jobs.jobfile.parse import job_to_dict
from zerotools.jobs.jobfile.stored_job import read_stored


@pytest.mark.parametrize(
    ("stage", "way"), [(0, "local"), (1, "local"), (2, "sharded"), (3, "sharded")]
)
def test_micro_batches_are_summed_by_parts_where_gradients_are_sharded(
    stage: int, way: str
) -> None:
    spec = parsed(zero={"stage": stage}, train__micro_batch_size=2)
    assert memory_layout_of(spec).accumulate == way
    for said in ("local", "sharded"):
        spec = parsed(zero={"stage": stage}, train__micro_batch_size=2, train__accumulate=said)
        assert memory_layout_of(spec).accumulate == said


def test_one_batch_is_not_summed() -> None:
    """Eight sequences over two ranks."""
    for micro in (None, 4):
        spec = parsed(train__micro_batch_size=micro)
        assert memory_layout_of(spec).accumulate is None


def test_a_job_of_before_the_key_goes_on_as_it_began() -> None:
    tree = job_to_dict(parsed(train__micro_batch_size=2))
    stored = read_stored(tree).spec
    assert stored is not None
    assert memory_layout_of(stored).accumulate == "sharded"
    del tree["train"]["accumulate"]
    older = read_stored(tree).spec
    assert older is not None
    assert memory_layout_of(older).accumulate == "local"
