"""The engine that a job names, made ready to train."""

from __future__ import annotations

from zerotools.core.errors import BadRequest
from zerotools.jobs.resumable import not_resumable
from zerotools.jobs.spec import JobSpec
from zerotoolsd.trainer.blueprint import Blueprint
from zerotoolsd.trainer.building import build
from zerotoolsd.trainer.enginetype import Engine
from zerotoolsd.trainer.group import Group
from zerotoolsd.trainer.reporting import Reporter
from zerotoolsd.trainer.resuming import Start
from zerotoolsd.trainer.torchengine import TorchEngine


def make_engine(
    spec: JobSpec, blueprint: Blueprint, group: Group, reporter: Reporter, start: Start | None
) -> Engine:
    """The engine of `spec` with its weights filled, unless `start` will fill them.

    Raises:
        ZerotoolsError: the model cannot be initialised, its weights cannot be read, or `start` is
            none for this job.
    """
    if start is not None:
        for sentence in not_resumable(spec, start.record, start.path):
            raise BadRequest(sentence)
    if spec.engine == "deepspeed":
        from zerotoolsd.trainer.deepspeed_engine import make_deepspeed_engine

        return make_deepspeed_engine(spec, blueprint, group, reporter, start)
    live = build(spec, blueprint, group, reporter, resumes=start is not None)
    return TorchEngine(spec, live, group)
