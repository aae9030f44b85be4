"""torch.save files of weights, one or a Hugging Face directory of several with their index.

lay_out   Checkpoint -> Target, which `torch.load` and `from_pretrained` read
"""

from zerotools.formats.torchfile.lay_out import lay_out

__all__ = ["lay_out"]
