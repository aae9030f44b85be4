"""Check if a job can start from a checkpoint: compare the job with the checkpoint's record and
weights.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from zerotools.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType
from zerotools.jobs.jobfile_tables.deepspeed import on_nvme, optimizer_of
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.runs.thinning_record import is_thinned
from zerotools.runs.training_record import JobRecord

TRAINABLE = (BFLOAT16, FLOAT16, FLOAT32, FLOAT64)


def not_resumable(spec: JobSpec, record: JobRecord, path: Path) -> Iterator[str]:
    """Yield each reason why the job `spec` cannot resume from the checkpoint at `path`, with
    advice. `record` is the description of the job in the checkpoint.
    """
    where = f"resume_from = {path}"
    if is_thinned(path):
        yield (
            f"{where}: it was thinned, and holds no optimizer state; start a new run from the "
            f'weights with model.path = "{path}", or resume from another checkpoint'
        )
        return
    if record.weights_only or (spec.engine == "deepspeed" and on_nvme(spec.deepspeed.tree)):
        yield (
            f"{where}: DeepSpeed does not load optimizer state that it offloaded to NVMe, so the "
            "job cannot resume (DeepSpeed reports no error); offload to the CPU"
            + (
                f', or start a new run from the weights with model.path = "{path}"'
                * record.weights_only
            )
        )
        return
    if record.engine != spec.engine:
        yield (
            f'{where}: was written by engine "{record.engine}", but the job has engine = '
            f'"{spec.engine}"; set engine = "{record.engine}", or export the weights (zerotools '
            f"consolidate {shlex.quote(str(path))} OUT) and start a new run with model.path"
        )
        return
    yield from _other_optimizer(spec, record, where)
    yield from _other_adapters(spec, record, where)
    if spec.engine == "deepspeed":
        yield from _other_layout(spec, record, path)


def _other_optimizer(spec: JobSpec, record: JobRecord, where: str) -> Iterator[str]:
    wanted = optimizer_of(spec.deepspeed.tree) or spec.train.optimizer
    if record.optimizer.name != wanted:
        yield (
            f'train.optimizer = "{wanted}": {where} was trained with "{record.optimizer.name}"; '
            f'use "{record.optimizer.name}" for this job'
        )


def _other_adapters(spec: JobSpec, record: JobRecord, where: str) -> Iterator[str]:
    """Yield each reason why the job's LoRA adapters do not fit the checkpoint.

    A different LoRA rank is not reported here, because loading the checkpoint will fail and report
    it. A different scale must be reported, because loading would not fail.
    """
    wanted, saved = spec.lora, record.lora
    if saved is None and wanted.packs_frozen:
        yield (
            f"{where}: was trained without adapters; export its weights with zerotools "
            "consolidate, and start a new run with model.path"
        )
        return
    if saved is not None and wanted.rank is not None:
        kept = "train" if saved.base is None else saved.base.precision
        if (saved.base is not None) != wanted.packs_frozen:
            yield (
                f'lora.frozen_precision = "{wanted.frozen_precision}": the adapters of {where} '
                f'were trained with frozen weights of "{kept}"; use that type, or begin a new run '
                "with lora.path"
            )
            return
        if saved.base is not None and saved.base.double_quant != wanted.double_quant:
            yield (
                f"lora.double_quant = {str(wanted.double_quant).lower()}: the adapters of "
                f"{where} were trained with {str(saved.base.double_quant).lower()}, and the "
                "frozen weights would differ; use that value, or begin a new run with lora.path"
            )
            return
    if saved is None or saved.rank != wanted.rank or saved.scale == wanted.scale:
        return
    yield (
        f"lora.alpha = {wanted.scale * saved.rank:g}: the adapters of {where} were trained with "
        f"{saved.scale * saved.rank:g}; use that value"
    )


def _other_layout(spec: JobSpec, record: JobRecord, path: Path) -> Iterator[str]:
    """Yield each reason why DeepSpeed's optimizer files in the checkpoint do not fit the job.

    These files fit only a job with the world size and ZeRO stage of the job that wrote them.
    """
    saved, wanted = (record.world_size, record.stage), (spec.world_size, spec.zero.stage)
    if saved == wanted or saved[1] == wanted[1] == 0:  # nothing is cut at stage 0
        return
    if wanted[1] == 0:
        yield (
            f"resume_from = {path}: was saved at stage {saved[1]}, but the job has stage 0; train "
            f"at stage {saved[1]}"
        )
        return
    out = path.with_name(f"{path.name}-{wanted[0]}-ranks")
    command = f"zerotools reshard {shlex.quote(str(path))} {shlex.quote(str(out))}"
    stage = f" --stage {wanted[1]}" if saved[1] != wanted[1] else ""
    yield (
        f"resume_from = {path}: was saved at world size {saved[0]} and stage {saved[1]}, but the "
        f"job has world size {wanted[0]} and stage {wanted[1]}, so DeepSpeed cannot load "
        f'it; run {command} --world-size {wanted[0]}{stage}, and set resume_from = "{out}"'
    )


def quantised_refusal(
    tensors: Iterable[tuple[Path, str, DType]], config: Mapping[str, Any]
) -> str | None:
    """Return the error message for the first of `tensors` (file, name, dtype) that is quantised;
    None if no tensor is quantised.

    A float tensor is quantised if it has fewer than 16 bits. An integer tensor is quantised if its
    name ends with `.weight`, or if the model's `config` names a method of quantisation. Other
    integer tensors may be counts or tables.
    """
    found = config.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, Mapping) else None
    for path, name, dtype in tensors:
        narrow = dtype.is_float or name.endswith(".weight") or method is not None
        if narrow and dtype not in TRAINABLE:
            stated = f" (method {method} in its config.json)" if isinstance(method, str) else ""
            return (
                f"model.path: {path}: {name} is {dtype}: quantised weights cannot be trained; take "
                f"the model in 16 or 32 bits{stated}"
            )
    return None
