"""The base model of adapters with 4-bit weights, which stays in its directory.

Checkpoints record which one it was, and a continued run must have the same.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from zerotools.core.boxes import Box
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.jobs.tables.spec import JobSpec
from zerotools.runs.base_model_record import BaseRecord, record_base
from zerotoolsd.trainer.checkpoints.resuming import ResumePoint
from zerotoolsd.trainer.model.lora import BASE, base_name
from zerotoolsd.trainer.model.meta_model import MetaModel
from zerotoolsd.trainer.model.pretrained import Pretrained
from zerotoolsd.trainer.rank.group import WorldGroup


def check_base(spec: JobSpec, meta_model: MetaModel, pretrained: Pretrained) -> None:
    """Check the base model.

    Raises:
        BadRequest: the directory lacks weights, which no checkpoint would hold.
        Unsupported: a weight that gets an adapter is stored in pieces, to which none can be added.
    """
    said = f'lora.frozen_precision = "{spec.lora.frozen_precision}"'
    if pretrained.initial:
        raise BadRequest(
            f"{said}: {pretrained.directory} lacks {pretrained.initial[0]}, and checkpoints "
            "hold only the adapters; use a directory that has it"
        )
    for name, _ in meta_model.model.named_modules():
        if not f"{name}.".endswith(BASE):
            continue
        blocks = pretrained.blocks.get(base_name(f"{name}.weight"), ())
        is_one = len(blocks) == 1 and blocks[0].strides is None
        if not is_one or blocks[0].box != Box.whole(blocks[0].shape):
            raise Unsupported(
                f"{said}: {pretrained.directory} has the weight of "
                f"{base_name(f'{name}.weight')} in another shape, so that its adapter could not be "
                'merged; leave it out of lora.target_modules, or set "train"'
            )


def recorded_base(
    spec: JobSpec, pretrained: Pretrained | None, start: ResumePoint | None, group: WorldGroup
) -> Callable[[], BaseRecord | None]:
    """Begin to read the files of the base model, on rank 0, concurrently with other work.

    The returned function waits for it, on all ranks together, and returns the checkpoints' record
    of it. The record is None if checkpoints hold the weights themselves.

    It raises BadRequest if the files cannot be read, or differ from those with which the run of
    `start` began.
    """
    if pretrained is None or not spec.lora.packs_frozen:
        return lambda: None
    directory, lora = pretrained.directory.absolute(), spec.lora
    paths = {tensor.path for tensor in pretrained.stored.values()}
    names = {path.relative_to(pretrained.directory).as_posix() for path in paths}
    pool = ThreadPoolExecutor(1)
    read = partial(record_base, double_quant=lora.double_quant)
    reading = (
        pool.submit(read, directory, names, lora.frozen_precision) if group.rank.leads else None
    )
    pool.shutdown(wait=False)

    def decided() -> BaseRecord:
        assert reading is not None, "only rank 0 reads the base"
        found = reading.result()
        before = None if start is None or start.record.lora is None else start.record.lora.base
        if start is not None and before is not None:
            for name, file in before.files.items():
                if found.files.get(name) != file:
                    raise BadRequest(
                        f"model.path: {directory / name} is not the file that the adapters of "
                        f"{start.path} were trained on (SHA-256 {file.sha256[:12]}…); name "
                        "the directory with that base model"
                    )
        return found

    return lambda: group.decided_by_rank_zero(decided)
