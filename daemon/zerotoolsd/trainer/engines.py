"""The engine that a job names, made ready to train."""

from __future__ import annotations

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
        ZerotoolsError: the model cannot be initialised, or its weights cannot be read.
    """
    live = build(spec, blueprint, group, reporter, resumes=start is not None)
    return TorchEngine(spec, live, group)
