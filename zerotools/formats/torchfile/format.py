"""Files of `torch.save` as a `Format`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.training_state import TrainingState
from zerotools.formats.format import Format, Found, ReadOptions, WriteOptions
from zerotools.io.torchzip.file_range import SUFFIXES

if TYPE_CHECKING:
    from zerotools.core.target import Target
    from zerotools.core.thinning_changes import Keep, Thinning

_INDEX = ".bin.index.json"


class TorchFileFormat(Format):
    """A state dict in one file, in Hugging Face `.bin` shards, or in one file per rank."""

    name = "torchfile"
    title = "torch files"
    word = "torch"
    signs = ("pytorch_model.bin", "one .pt per rank")
    entry_names = (
        r"((diffusion_)?pytorch_model|adapter_model|pytorch_model_fsdp(_\d+)?)\.bin"
        r"|(diffusion_)?pytorch_model-\d+-of-\d+\.bin"
        r"|(diffusion_)?pytorch_model.*\.bin\.index\.json"
        r"|checkpoint\.pt"
        r"|(?!optim|extra_state|random|rng|scheduler).*rank_?\d+\.(pt|pth|bin)"
    )
    suffixes = SUFFIXES
    is_weights_format = True

    def find_by_number(self, path: Path, names: set[str]) -> Found | None:
        from zerotools.formats.torchfile.group_files_by_name import numbered_groups

        groups = numbered_groups(names)
        return Found(path) if any(len(group.files) > 1 for group in groups) else None

    def find_file(self, path: Path) -> Found | None:
        if path.name.endswith(_INDEX):
            return Found(path.parent)
        return Found(path) if path.suffix in SUFFIXES else None

    def read(self, path: Path, options: ReadOptions) -> Checkpoint:
        from zerotools.formats.torchfile.read import read

        return read(path)

    def read_state(self, path: Path, weights: Mapping[str, tuple[int, ...]]) -> Checkpoint:
        from zerotools.formats.torchfile.read import read_state

        return read_state(path, weights)

    def numbered_state(self, source: Checkpoint) -> tuple[Checkpoint, TrainingState] | None:
        from zerotools.formats.torchfile.read import refuse_unread_optimizers

        refuse_unread_optimizers(source)
        return None

    def training_of(self, checkpoint: Checkpoint) -> TrainingState:
        from zerotools.formats.torchfile.training_state import training_of

        return training_of(checkpoint)

    def lay_out(
        self, source: Checkpoint, training: TrainingState, destination: Path, options: WriteOptions
    ) -> Target:
        from zerotools.formats.torchfile.lay_out import lay_out_training_file

        return lay_out_training_file(source, training, destination)

    def export(self, weights: Checkpoint, destination: Path, options: WriteOptions) -> Target:
        from zerotools.formats.torchfile.lay_out import lay_out

        return lay_out(weights, destination, max_shard_bytes=options.shard_bytes())

    def thin(self, source: Checkpoint, keep: Keep, options: ReadOptions) -> Thinning:
        from zerotools.formats.torchfile.thin import thin

        return thin(source)
