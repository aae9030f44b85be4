"""`[checkpoint]` of the job file: when checkpoints are written, and which of them are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zerotools.jobs.binding.declaration import key
from zerotools.jobs.jobfile_tables.check_store_urls import why_not_written

BEST = ("eval_loss", "loss")
ADAPTER = "adapter"
EXPORTS = ("bf16", "fp16", "fp32", ADAPTER)
EXPORT = "export"
"""The name of the directory in the output directory to which `export_on_finish` writes the
model.
"""


@dataclass(frozen=True, kw_only=True)
class CheckpointSpec:
    """`[checkpoint]`: when sharded checkpoints are written. A checkpoint is always written at the
    end.
    """

    every: int | None = key(
        "Steps between checkpoints; default: only at the end and at a stop.",
        default=None,
        minimum=1,
    )
    asynchronous: bool = key(
        "Training waits only while each rank copies its shards to host memory, and continues "
        "while they are written. All ranks together need as much host memory as the checkpoint is "
        "large.",
        default=False,
    )
    keep_last: int | None = key(
        "Keep this many checkpoints and delete older ones of this job; default: keep all.",
        default=None,
        minimum=1,
    )
    keep_every: int | None = key(
        "Also keep the checkpoints at multiples of this many steps, even if `keep_last` would "
        "delete them. Must be a multiple of `every`.",
        default=None,
        minimum=1,
    )
    thin_after: int | None = key(
        "Keep this many of the newest checkpoints complete, and drop the optimizer state of older "
        "checkpoints except the best, like `zerotools thin` does. Training cannot resume from a "
        "checkpoint without optimizer state. Default: keep all complete.",
        default=None,
        stored_default=None,
        minimum=1,
        imported=False,
    )
    upload_to: str | None = key(
        "The address in an object store (`s3://`, `gs://`, `az://`) to which checkpoints are "
        "copied while the job trains, such as `s3://bucket/run`. No other run may have "
        "checkpoints below this address. See [object "
        "stores](../how-to/object-stores.md#checkpoints-of-a-job).",
        default=None,
        stored_default=None,
        imported=False,
    )
    upload_keep_last: int | None = key(
        "Keep this many of the newest checkpoints at `upload_to`, and also those that `keep_every` "
        "keeps, and the best; default: keep all.",
        default=None,
        stored_default=None,
        minimum=1,
        imported=False,
    )
    best: str | None = key(
        "Also keep the best checkpoint, and name it in the file `best`. `loss`: the one with the "
        "smallest mean training loss since the checkpoint before it; `eval_loss`: the one with the "
        "smallest loss of `[eval]`.",
        default=None,
        allowed=BEST,
    )
    export_on_finish: str | None = key(
        "When all steps are done, the model is written to `export` in the output directory in "
        "this type: safetensors with config and tokenizer, for `from_pretrained`. `adapter` "
        "writes only the adapters of `[lora]`, for `PeftModel.from_pretrained`. The export uses "
        "no GPU. If the export fails, the job has still succeeded.",
        default=None,
        allowed=EXPORTS,
    )


def check_checkpoint(checkpoint: CheckpointSpec) -> Iterator[str]:
    """Yield the problems in `[checkpoint]` that do not depend on other tables."""
    yield from _check_thinning(checkpoint)
    yield from _check_upload(checkpoint)
    keep_every, every = checkpoint.keep_every, checkpoint.every
    if keep_every is None:
        return
    if checkpoint.keep_last is None:
        yield (
            f"checkpoint.keep_every = {keep_every}: has no effect, because without "
            "checkpoint.keep_last all checkpoints are kept; set checkpoint.keep_last, or leave "
            "checkpoint.keep_every out"
        )
    if every is None:
        yield (
            f"checkpoint.keep_every = {keep_every}: must be a multiple of checkpoint.every, which "
            "is not set; set checkpoint.every"
        )
    elif keep_every % every:
        yield (
            f"checkpoint.keep_every = {keep_every}: must be a multiple of checkpoint.every, "
            f"which is {every}"
        )


def _check_upload(checkpoint: CheckpointSpec) -> Iterator[str]:
    if checkpoint.upload_to is not None:
        yield from (f"checkpoint.upload_to: {why}" for why in why_not_written(checkpoint.upload_to))
    elif checkpoint.upload_keep_last is not None:
        yield (
            f"checkpoint.upload_keep_last = {checkpoint.upload_keep_last}: checkpoints are "
            "uploaded only with checkpoint.upload_to; set both keys, or neither"
        )


def _check_thinning(checkpoint: CheckpointSpec) -> Iterator[str]:
    thin_after, keep_last = checkpoint.thin_after, checkpoint.keep_last
    if thin_after is None or keep_last is None or checkpoint.keep_every is not None:
        return
    if thin_after >= keep_last:
        yield (
            f"checkpoint.thin_after = {thin_after}: has no effect, because checkpoint.keep_last = "
            f"{keep_last} keeps no older checkpoint; set a larger checkpoint.keep_last, or leave "
            "one of the two out"
        )
