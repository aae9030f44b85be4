"""Which jobs evaluate another, what they found, and where that is shown."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.daemon.daemons import make_job
from tests.daemon.dispatchers import Running
from tests.daemon.service.test_answer_requests import ME, refusal, tell
from tests.golden_files import JOB
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.interface.api_types import Conflict, JobView
from zerotoolsd.interface.start_conditions import Dependency, JobEdit, QueueTerms
from zerotoolsd.service.queue_evaluation_jobs import evaluations_of


def evaluated(fake: str, place: Path, **changes: Any) -> JobSpec:
    """A job that is evaluated when it has succeeded."""
    (place / "tokenizer").mkdir(exist_ok=True)
    (place / "tokenizer" / "tokenizer.json").write_text("{}")
    data = {"text": [__file__], "tokenizer": str(place / "tokenizer")}
    return make_job(fake, data=data, eval={"tasks": ["mine"], "few_shot": 2}, **changes)


async def submit(it: Running, spec: JobSpec) -> tuple[JobView, JobView]:
    """Return the job, and the one that evaluates it."""
    job, _ = await it.service.submit(spec, uid=ME, idempotency_key=None)
    found = await it.service.job(job.id)
    assert found.evaluated_by is not None
    return found, await it.service.job(found.evaluated_by["job"])


def fake_harness(place: Path) -> dict[str, str]:
    """Variables by which a program imports a harness that has every task, and one score."""
    package = place / "packages" / "lm_eval"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "tasks.py").write_text(
        "class TaskManager:\n"
        "    def __init__(self, **paths):\n        self.paths = paths\n"
        "    def match_tasks(self, names):\n        return names\n"
    )
    (package / "evaluator.py").write_text(
        "import json, pathlib\n"
        "def simple_evaluate(*, tasks, model_args, num_fewshot, **more):\n"
        "    path = pathlib.Path(model_args['pretrained'])\n"
        "    layers = json.loads((path / 'config.json').read_text())['num_hidden_layers']\n"
        "    scores = {'acc,none': layers / 4, 'acc_stderr,none': 0.1, 'alias': 'x'}\n"
        "    return {'results': {name: scores for name in tasks}, 'n-shot': num_fewshot}\n"
    )
    return {"PYTHONPATH": str(package.parent)}


def train(job: JobView) -> None:
    """Put a checkpoint of step 3 where the job writes."""
    shutil.copytree(JOB, Path(job.output_dir) / JOB.name, symlinks=True)


def test_a_job_with_tasks_is_followed_by_one_that_evaluates_it(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        env = {"FAKE": "steps=3 release exit=0", **fake_harness(tmp_path)}
        job, after = await submit(it, evaluated("", tmp_path, ranks=1, env=env, name="tiny"))
        assert job.evaluated_by == {
            "job": after.id, "state": "waiting", "step": None, "scores": {}
        }  # fmt: skip
        assert (after.name, after.stage, after.world_size) == ("tiny-eval", None, 1)
        assert after.after == ({"job": job.id, "condition": "ok", "state": job.state},)
        await it.reach(job.id, "running")
        train(job)
        it.release(job.id)
        await it.reach(job.id, "succeeded")
        done = await it.reach(after.id, "succeeded")
        assert done.evaluation is not None
        assert (done.evaluation["step"], done.evaluation["mine/acc"]) == (3, 0.25)
        found = (await it.service.job(job.id)).evaluated_by
        assert found == {
            "job": after.id, "state": "succeeded", "step": 3, "scores": {"mine/acc": 0.25}
        }  # fmt: skip
        for number in (job.id, after.id):
            curves = await it.service.curves(number, 10)
            assert (curves["scores"]["step"], curves["scores"]["mine/acc"]) == ([3], [0.25])
            assert len(curves["scores"]["time"]) == 1
        assert (await it.service.curves(job.id, 10))["steps"]["step"] == [1, 2, 3]
        assert [each.evaluated_by for each in await it.service.jobs()] == [None, None]
        output = Path(done.output_dir)
        result = json.loads((output / "results.json").read_text())
        assert (result["step"], result["n-shot"]) == (3, 2)
        assert result["checkpoint"] == str(Path(job.output_dir) / JOB.name)
        assert not (output / "model").exists()
        again = await it.service.retry(after.id, uid=ME, from_start=True)
        assert (again.after[0]["job"], again.after[0]["condition"]) == (job.id, "any")
        await it.reach(again.id, "succeeded")
        newest = (await it.service.job(job.id)).evaluated_by
        assert newest is not None
        assert newest["job"] == again.id

    tell(tmp_path / "state", story)


def test_without_a_whole_checkpoint_the_evaluation_says_so(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        job, after = await submit(it, evaluated("exit=0", tmp_path, ranks=1))
        found = await it.reach(after.id, "failed")
        assert found.reason is not None
        assert "no model can be exported" in found.reason
        assert job.output_dir in found.reason

    tell(tmp_path / "state", story)


def test_what_failed_is_evaluated_when_its_evaluation_is_released(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        changes: dict[str, Any] = {"ranks": 1, "max_restarts": 0}
        env = {"FAKE": "steps=3 release exit=1", **fake_harness(tmp_path)}
        job, after = await submit(it, evaluated("", tmp_path, env=env, **changes))
        await it.reach(job.id, "running")
        train(job)
        it.release(job.id)
        held = await it.reach(after.id, "on_hold")
        assert held.reason is not None
        assert f"only after job {job.id} succeeds, but that job has failed" in held.reason
        await it.service.release(after.id, uid=ME)
        await it.reach(after.id, "succeeded")
        found = (await it.service.job(job.id)).evaluated_by
        assert found is not None
        assert found["scores"] == {"mine/acc": 0.25}

    tell(tmp_path / "state", story)


def test_each_of_an_array_is_evaluated_and_counted(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        spec = evaluated("hang", tmp_path)
        members = [
            (replace(spec, name=f"m{n}", output_dir=str(tmp_path / str(n))), "") for n in "ab"
        ]
        jobs = await it.service.submit_array(members, uid=ME, idempotency_key="k")
        assert [job.id for job in jobs] == [1, 2]
        for job, place in zip(jobs, "ab", strict=True):
            (other,) = evaluations_of(it.engine.store, it.engine.store.job(job.id))
            assert (other.id, other.name) == (job.id + 2, f"m{place}-eval")
            assert other.spec.script.evaluates == str(tmp_path / place)
            assert other.array is None
        again = await it.service.submit_array(members, uid=ME, idempotency_key="k")
        assert [job.id for job in again] == [1, 2]
        assert len(await it.service.jobs()) == 4
        one, new = await it.service.submit(spec, uid=ME, idempotency_key="one")
        assert (one.id, new) == (5, True)
        one, new = await it.service.submit(spec, uid=ME, idempotency_key="one")
        assert (one.id, new) == (5, False)
        assert len(await it.service.jobs()) == 6

    tell(tmp_path / "state", story)


def test_of_the_jobs_after_another_only_those_are_read_that_evaluate_one(tmp_path: Path) -> None:
    """A thousand jobs may start after another, and each takes a millisecond to read."""

    async def story(it: Running) -> None:
        await it.service.drain(None, uid=ME)
        job, after = await submit(it, evaluated("exit=0", tmp_path))
        terms = QueueTerms(after=(Dependency(job_id=job.id),))
        await it.service.submit(make_job("exit=0"), uid=ME, idempotency_key=None, terms=terms)
        row = it.engine.store.job(job.id)
        assert len(it.engine.store.dependencies.dependents([job.id])) == 2
        assert [each.id for each in it.engine.store.after(row, '"evaluates"')] == [after.id]
        assert it.engine.store.after(replace(row, uid=row.uid + 1), '"evaluates"') == []

    tell(tmp_path / "state", story)


def test_what_another_job_was_made_of_is_not_edited(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        await it.service.drain(None, uid=ME)
        job, after = await submit(it, evaluated("exit=0", tmp_path))
        changes = {"eval.tasks": ["b"], "eval.few_shot": 0, "eval.batch_size": 2}
        changes["output_dir"] = "/x"
        for key, value in changes.items():
            edit = JobEdit(set={key: value})
            said = await refusal(it.service.edit(job.id, edit, uid=ME), Conflict)
            assert f"cancel job {job.id} and its evaluation, job {after.id}, then" in said
        await it.service.edit(job.id, JobEdit(set={"train.steps": 7}), uid=ME)
        assert len(await it.service.jobs()) == 2
        plain, _ = await it.service.submit(make_job("exit=0"), uid=ME, idempotency_key=None)
        assert plain.evaluated_by is None
        more = JobEdit(set={"eval.tasks": ["a"], "data.tokenizer": str(tmp_path / "tokenizer")})
        assert "cancel it, then submit job" in await refusal(
            it.service.edit(plain.id, more, uid=ME), Conflict
        )

    tell(tmp_path / "state", story)


def test_directories_that_are_not_there_are_refused(tmp_path: Path) -> None:
    async def story(it: Running) -> None:
        spec = evaluated("exit=0", tmp_path)
        lost = replace(spec, eval=replace(spec.eval, task_dir="/no/tasks"))
        said = await refusal(it.service.submit(lost, uid=ME, idempotency_key=None), BadRequest)
        assert said == "eval.task_dir = /no/tasks: no such directory"
        own = job_from_dict(
            {
                "engine": "script",
                "device": "cpu",
                "script": {"command": ["/bin/true"], "directory": "/", "evaluates": "/no/run"},
            },
            source="job",
        )
        said = await refusal(it.service.submit(own, uid=ME, idempotency_key=None), BadRequest)
        assert said == "script.evaluates = /no/run: no such file or directory"

    tell(tmp_path / "state", story)
