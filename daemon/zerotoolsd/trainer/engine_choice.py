"""The engine that a job names, made ready to train."""

from __future__ import annotations

from zerotools.core.errors import BadRequest
from zerotools.core.training_memory import MemoryLayout
from zerotools.jobs.preflight.resumable import not_resumable
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.trainer.checkpoints.resuming import ResumePoint
from zerotoolsd.trainer.engine.protocol import Engine
from zerotoolsd.trainer.engine_torch.building import build
from zerotoolsd.trainer.engine_torch.engine import TorchEngine
from zerotoolsd.trainer.model.meta_model import MetaModel
from zerotoolsd.trainer.model.pretrained import Pretrained
from zerotoolsd.trainer.rank.group import WorldGroup
from zerotoolsd.trainer.reporting.reporter import Reporter


def make_engine(
    spec: JobSpec,
    layout: MemoryLayout,
    meta_model: MetaModel,
    group: WorldGroup,
    reporter: Reporter,
    start: ResumePoint | None,
    pretrained: Pretrained | None,
) -> Engine:
    """Return the engine of `spec` with filled weights.

    They come from `pretrained`, unless `start` will fill them.

    Engine `torch` allocates by `layout`; DeepSpeed's config describes the same layout.

    Raises:
        ZerotoolsError: the model cannot be initialised, its weights cannot be read, or `start` does
            not fit this job.
    """
    if start is not None and start.foreign is None:
        for sentence in not_resumable(spec, start.record, start.path):
            raise BadRequest(sentence)
    if spec.engine == "deepspeed":
        from zerotoolsd.trainer.engine_deepspeed.engine import make_deepspeed_engine

        return make_deepspeed_engine(spec, meta_model, group, reporter, start, pretrained)
    record = start.record if start else None
    live = build(spec, layout, meta_model, group, reporter, record, pretrained)
    return TorchEngine(spec, live, group)
