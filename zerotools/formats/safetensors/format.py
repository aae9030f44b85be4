"""safetensors as a `Format`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.training_state import TrainingState
from zerotools.formats.format import Format, Found, ReadOptions, WriteOptions
from zerotools.runs.job_checkpoint_file_names import RECORD

if TYPE_CHECKING:
    from zerotools.core.target import Target
    from zerotools.core.thinning_changes import Keep, Thinning
    from zerotools.runs.training_record import JobRecord

_SUFFIX = ".safetensors"
_INDEX = f"{_SUFFIX}.index.json"


class SafetensorsFormat(Format):
    """safetensors: a single file, a Hugging Face directory of several files, or one file per
    rank."""

    name = "safetensors"
    title = "safetensors"
    signs = (f"*{_SUFFIX}",)
    entry_names = r".*\.safetensors(\.index\.json)?"
    suffixes = (_SUFFIX,)
    is_weights_format = True
    write_options = frozenset({"max_shard_bytes"})
    holds_state = False
    writes_state = False

    def find_file(self, path: Path) -> Found | None:
        if path.name.endswith(_SUFFIX):
            return Found(path)
        return Found(path.parent) if path.name.endswith(_INDEX) else None

    def read(self, path: Path, options: ReadOptions) -> Checkpoint:
        from zerotools.formats.safetensors.read import read

        return read(path)

    def doubts(self, source: Checkpoint) -> Mapping[str, str]:
        from zerotools.formats.safetensors.merge_rank_shards import lost_shards

        if any(
            problem.prevents_output for problem in source.problems
        ):  # and some tensors are left out
            return {}
        return lost_shards(source.root, source.tensors, list(source.files)).doubtful

    def job_record(self, source: Checkpoint) -> JobRecord | None:
        """Return the record of the zerotools job that saved the weights, or None.

        Only a job that uses DeepSpeed saves weights as safetensors; its training state is stored
        elsewhere.
        """
        if not (source.root / RECORD).is_file():
            return None
        from zerotools.runs.training_record import read_record

        record = read_record(source.root)
        return record if record.weights_only else None

    def training_of(self, checkpoint: Checkpoint) -> TrainingState:
        from zerotools.formats.safetensors.read import training_of

        return training_of(checkpoint)

    def lay_out(
        self, source: Checkpoint, training: TrainingState, destination: Path, options: WriteOptions
    ) -> Target:
        return self.export(source, destination, options)

    def thin(self, source: Checkpoint, keep: Keep, options: ReadOptions) -> Thinning:
        """Plan how to remove the optimizer files. The safetensors files stay, because they contain
        only weights.
        """
        from zerotools.core.thinning_changes import Keep, Thinning
        from zerotools.io.huggingface.model_sidecars import optimizer_files

        removed = optimizer_files(source.root) if source.origin.path.is_dir() else frozenset()
        kept = {key: key for key in source.tensors if key.role in ("param", "buffer")}
        return Thinning(Keep.MASTERS, kept, removed)

    def export(self, weights: Checkpoint, destination: Path, options: WriteOptions) -> Target:
        from zerotools.formats.safetensors.header import REMARK
        from zerotools.formats.safetensors.lay_out import lay_out

        size, remark = options.shard_bytes(), options.remark
        metadata = None if remark is None else {"format": "pt", REMARK: remark}
        return lay_out(weights, destination, max_shard_bytes=size, metadata=metadata)

    def export_adapter(self, adapter: Checkpoint, destination: Path) -> Target:
        from zerotools.formats.safetensors.lay_out import lay_out

        whole = max(1, sum(tensor.nbytes for tensor in adapter.tensors.values()))
        return lay_out(adapter, destination, max_shard_bytes=whole, stem="adapter_model")
