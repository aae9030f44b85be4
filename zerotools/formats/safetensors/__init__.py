"""safetensors, one file or a Hugging Face directory of several with their index.

header    the JSON header of a file, checked as the reference implementation checks it
sharded   one file per rank, put together
read      file or directory -> Checkpoint
lay_out   Checkpoint -> Target, which `from_pretrained` loads
"""

from zerotools.formats.safetensors.lay_out import lay_out
from zerotools.formats.safetensors.read import read

__all__ = ["lay_out", "read"]
