"""Whether the masters of a checkpoint are those of the weights that were saved with them."""

from __future__ import annotations

from zerotools.core.checkpoint import Checkpoint


def check_masters(checkpoint: Checkpoint) -> None:
    """Compare samples of masters with the weights beside them, in the formats that have both.

    Raises:
        Unsupported: they are of two saves, or do not lie as the files say.
        BadFile: a file is cut short.
    """
    if checkpoint.origin.format in ("deepspeed", "universal"):
        from zerotools.formats.deepspeed.checks import check_weights

        check_weights(checkpoint)
