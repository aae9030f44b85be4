"""Whether what a checkpoint has in several places is equal: masters and weights, and copies."""

from __future__ import annotations

from zerotools.core.checkpoint import Checkpoint


def check_masters(checkpoint: Checkpoint) -> None:
    """Compare samples of masters with the weights beside them, in the formats that have both.

    Raises:
        Unsupported: they are of two saves, or do not lie as the files say.
        BadFile: a file is truncated.
    """
    if checkpoint.origin.format in ("deepspeed", "universal"):
        from zerotools.formats.deepspeed.writing.checks import check_weights

        check_weights(checkpoint)


def check_copies(checkpoint: Checkpoint) -> None:
    """Compare what other files have of tensors that are read from one.

    Raises:
        BadFile: two differ, or a file is truncated.
    """
    if checkpoint.origin.format == "deepspeed":
        from zerotools.formats.deepspeed.reading.repeated_tensors import compare_copies

        compare_copies(checkpoint)
