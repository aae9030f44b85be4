"""The GPUs that jobs never get (`gpus.exclude`), and the GPUs that jobs get first (`gpus.prefer`).

Both are lists in the configuration. An entry is the index of a GPU as in nvidia-smi, a UUID or its
beginning (as in CUDA_VISIBLE_DEVICES), or a GPU model, which means all GPUs of this model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from zerotools.sensors.snapshot import Gpu, Snapshot

Entry = int | str


@dataclass(frozen=True)
class GpuChoice:
    """The lists `gpus.exclude` and `gpus.prefer` of the configuration."""

    exclude: tuple[Entry, ...] = ()
    prefer: tuple[Entry, ...] = ()

    def of(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the fields `excluded` and `preference` set for each GPU."""
        if not self.exclude and not self.prefer:
            return snapshot
        return replace(snapshot, gpus=tuple(map(self._chosen, snapshot.gpus)))

    def _chosen(self, gpu: Gpu) -> Gpu:
        places = (place for place, entry in enumerate(self.prefer) if matches_gpu(entry, gpu))
        excluded = any(matches_gpu(entry, gpu) for entry in self.exclude)
        return replace(gpu, excluded=excluded, preference=next(places, None))

    def unknown(self, gpus: Sequence[Gpu]) -> Iterator[str]:
        """Yield the entries of `exclude` and `prefer` that match none of the GPUs, each with the
        name of its list. Example: `gpus.exclude: "GPU-5"`.
        """
        for name, entries in (("exclude", self.exclude), ("prefer", self.prefer)):
            for entry in entries:
                if not any(matches_gpu(entry, gpu) for gpu in gpus):
                    yield f"gpus.{name}: {entry!r}".replace("'", '"')


def matches_gpu(entry: Entry, gpu: Gpu) -> bool:
    """Return whether an entry of `gpus.exclude` or `gpus.prefer` means this GPU."""
    if isinstance(entry, int):
        return entry == gpu.index
    text = entry.strip().casefold()
    uuid, name = (gpu.uuid or "").casefold(), (gpu.name or "").casefold()
    is_uuid = text.startswith("gpu-") and len(text) > len("gpu-") and uuid.startswith(text)
    return is_uuid or (bool(text) and text == name)


def by_preference(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs, sorted so that preferred GPUs come first. GPUs that are not preferred keep
    their order.
    """
    return sorted(gpus, key=preference_rank)


def preference_rank(gpu: Gpu) -> float:
    """Return the position of the GPU in `gpus.prefer`, or infinity if it is not in the list."""
    return float("inf") if gpu.preference is None else gpu.preference
