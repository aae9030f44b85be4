"""Operations that are drawn at random are the same again, and are of all kinds."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from harness.faults.daemons import Place
from harness.faults.operations import ARRAY, KILLS, REQUESTS, SUBMIT, SUBMITS, job_of, steps
from zerotools.jobs.jobfile.parse import job_from_dict


def test_a_seed_gives_the_same_operations_and_another_seed_others() -> None:
    assert list(islice(steps(7), 50)) == list(islice(steps(7), 50))
    assert list(islice(steps(7), 50)) != list(islice(steps(8), 50))


def test_all_kinds_come_and_every_job_is_one_that_a_daemon_takes(tmp_path: Path) -> None:
    place = Place(tmp_path / "place", tmp_path)
    drawn = [each for step in islice(steps(7), 300) for each in step]
    assert {each.name for each in drawn} == {*KILLS, *REQUESTS, *SUBMITS}
    submits = [each for each in drawn if each.name in (SUBMIT, ARRAY)]
    wanted = [job_of(place, each) for each in submits]
    specs = [job_from_dict(each.tree, source="job") for each in wanted]
    assert {spec.engine for spec in specs} == {"script", "torch"}
    assert {spec.device for spec in specs} == {"cpu", "cuda"}
    assert {key for each in wanted for key in each.terms} == {"priority", "hold", "begin", "after"}
    assert [job_of(place, each) for each in submits] == wanted
