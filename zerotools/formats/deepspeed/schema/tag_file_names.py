"""The file names in a tag directory, and the names that identify a DeepSpeed checkpoint.

Source: DeepSpeed `runtime/engine.py` (`_get_ckpt_name`, `_get_optimizer_ckpt_name`,
`_get_expert_ckpt_name`) and `runtime/pipe/module.py` (`ckpt_layer_path`), tags v0.3.0 to v0.19.8.
`pp_rank` in a ZeRO file's name is the data-parallel rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.core.errors import Unsupported
from zerotools.io.files.directory_entries import names_if_readable

_NUMBER = r"\d{1,5}"  # limits the search for missing files
_MODEL = re.compile(
    rf"(?:zero_pp_rank_(?P<dp>{_NUMBER})_)?mp_rank_(?P<mp>{_NUMBER})_model_states\.pt"
)
# Versions up to 0.3.13 have no underscore before `optim`.
_OPTIM = re.compile(
    rf"(?P<bf16>bf16_)?zero_pp_rank_(?P<dp>{_NUMBER})_mp_rank_(?P<mp>{_NUMBER})"
    r"(?P<separator>_?)optim_states\.pt"
)
_LAYER = re.compile(rf"layer_(?P<layer>{_NUMBER})(?:-model_(?P<tp>{_NUMBER}))?-model_states\.pt")
_EXPERT = re.compile(
    rf"(?:layer_(?P<layer>{_NUMBER})_)?expert_(?P<expert>{_NUMBER})_mp_rank_(?P<mp>{_NUMBER})"
    r"_model_states\.pt"
)
_EXPERT_OPTIM = re.compile(r"expp_rank_\d+_mp_rank_\d+_optim_states\.pt")
_SPLIT = re.compile(r".*_states\.pt-\d+\.\d+")

_KINDS = {
    "model": re.compile(rf"mp_rank_(?P<mp>{_NUMBER})_model_states\.pt"),
    "zero3 model": re.compile(
        rf"zero_pp_rank_(?P<dp>{_NUMBER})_mp_rank_(?P<mp>{_NUMBER})_model_states\.pt"
    ),
    "optimizer": _OPTIM,
    "layer": _LAYER,
    "expert": _EXPERT,
}
_SPELLING = ("bf16", "separator")


_RANK_PREFIX = "zero_pp_rank_"
_BF16_PREFIX = "bf16_"
ANY_LAYER = "layer_*-model_states.pt"
"""The file name that a problem has if it is unknown which layer file of a pipeline is missing."""


def model_file(mp_rank: int, dp_rank: int | None = None) -> str:
    """Return the name of the model file of a model-parallel rank or, at stage 3, of its
    data-parallel rank `dp_rank`.
    """
    rank = "" if dp_rank is None else f"{_RANK_PREFIX}{dp_rank}_"
    return f"{rank}mp_rank_{mp_rank:02d}_model_states.pt"


def optim_file(mp_rank: int, dp_rank: int, *, bf16: bool = False) -> str:
    """Return the name of one rank's optimizer file. If `bf16` is True, the name has a prefix."""
    prefix = _BF16_PREFIX if bf16 else ""
    return f"{prefix}{_RANK_PREFIX}{dp_rank}_mp_rank_{mp_rank:02d}_optim_states.pt"


def layer_file(layer: int) -> str:
    """Return the file name of a pipeline layer without tensor parallelism."""
    return f"layer_{layer:02d}-model_states.pt"


def expert_file(layer: int, expert: int, mp_rank: int) -> str:
    """Return the file name of an expert. `expert` is its number over all ranks."""
    return f"layer_{layer}_expert_{expert}_mp_rank_{mp_rank:02d}_model_states.pt"


def is_layer_file(name: str) -> bool:
    """Return whether `name` is the file name of a pipeline layer or of an expert."""
    return name.startswith("layer_")


def is_rank_file(name: str) -> bool:
    """Return whether `name` is the name of a model file of a single data-parallel rank, as stage 3
    writes it.
    """
    return name.startswith(_RANK_PREFIX)


def has_bf16_prefix(name: str) -> bool:
    return name.startswith(_BF16_PREFIX)


def name_for_rank(name: str, dp_rank: int, mp_rank: int | None = None) -> str:
    """Return the name that the file `name` has for data-parallel rank `dp_rank` and, if it is
    passed, model-parallel rank `mp_rank`."""
    named = re.sub(r"pp_rank_\d+_", f"pp_rank_{dp_rank}_", name)
    return named if mp_rank is None else re.sub(r"mp_rank_\d+", f"mp_rank_{mp_rank:02d}", named)


@dataclass
class TagListing:
    """The file names in a tag directory, for each kind of file. The keys are numbers of ranks,
    layers and experts.

    Attributes:
        models: (mp rank, dp rank) -> name. If all data-parallel ranks share a model file (stages 0
            to 2), its dp rank is None.
        optim_files: (mp rank, dp rank, spelling of the name) -> name.
        sequence_ranks: the number of ranks that share a sequence. The mp rank in a file name may
            then be the rank's number among these ranks.
    """

    models: dict[tuple[int, int | None], str] = field(default_factory=dict)
    optim_files: dict[tuple[int, int, str], str] = field(default_factory=dict)
    layers: dict[tuple[int, int], str] = field(default_factory=dict)
    experts: dict[tuple[int, int, int], str] = field(default_factory=dict)
    expert_optimizers: list[str] = field(default_factory=list)
    sequence_ranks: int = 1

    @property
    def mp_ranks(self) -> list[int]:
        """The numbers of the model-parallel ranks; a number is pipeline stage * tensor ranks +
        tensor rank.
        """
        return sorted({mp_rank for mp_rank, _ in self.models})

    @property
    def tensor_ranks(self) -> int:
        """The number of tensor-parallel ranks in a stage.

        The names of a pipeline's layer files contain the tensor-parallel ranks. Without layer
        files, all model-parallel ranks are tensor-parallel.
        """
        if self.layers:
            return 1 + max(rank for _, rank in self.layers)
        return len(self.mp_ranks)


def list_files(directory: Path) -> TagListing:
    """Sort the file names in a tag directory by kind.

    Raises:
        Unsupported: a checkpoint file is split into several files (`-W.T`), which only DeepSpeed's
            fast writer can join.
    """
    return _sort(directory, sorted(entry.name for entry in directory.iterdir()))


def is_tag_directory(directory: Path) -> bool:
    """Return whether a directory holds files of a DeepSpeed tag, even if all model files are
    lost."""
    if not directory.is_dir():
        return False
    return any(
        any(names.fullmatch(entry.name) for names in (_MODEL, _OPTIM, _SPLIT))
        for entry in directory.iterdir()
    )


def identity_of(name: str) -> tuple[str, ...] | None:
    """Return the kind of a file and its numbers, such as its rank, layer or expert, as words; None
    for other files.
    """
    for kind, pattern in _KINDS.items():
        if match := pattern.fullmatch(name):
            numbers = match.groupdict().items()
            return (kind, *(f"{key} {int(n or 0)}" for key, n in numbers if key not in _SPELLING))
    return None


def _sort(directory: Path, names: Iterable[str]) -> TagListing:
    listing = TagListing()
    for name in names:
        if _SPLIT.fullmatch(name):
            raise Unsupported(
                f"{directory / name} is one part of a file that DeepSpeed's fast writer split; "
                "load it with DeepSpeed and save it with the default writer"
            )
        if match := _OPTIM.fullmatch(name):
            spelling = f"{match['bf16'] or ''}{match['separator']}"
            listing.optim_files[int(match["mp"]), int(match["dp"]), spelling] = name
        elif match := _EXPERT.fullmatch(name):
            layer = int(match["layer"] or 0)
            listing.experts[layer, int(match["expert"]), int(match["mp"])] = name
        elif match := _LAYER.fullmatch(name):
            listing.layers[int(match["layer"]), int(match["tp"] or 0)] = name
        elif match := _MODEL.fullmatch(name):
            dp = match["dp"]
            listing.models[int(match["mp"]), int(dp) if dp is not None else None] = name
        elif _EXPERT_OPTIM.fullmatch(name):
            listing.expert_optimizers.append(name)
    return listing


LATEST = ("latest", "latest_universal")
SIDECAR_NAMES = frozenset({*LATEST, "zero_to_fp32.py", "zero_to_torch.py"})
ZERO, MASTER = "zero", "fp32.pt"
"""The directory and the file name of a master in a universal checkpoint:
`zero/<parameter>/fp32.pt`.
"""
_FILE = re.compile(r"((bf16_)?zero_pp_rank_\d+_)?mp_rank_\d+_?(model|optim)_states\.pt(-\d+\.\d+)?")
_ONE_FILE = re.compile(r"(mp_rank|expert|layer)_\d+.*_(model|optim)_states\.pt")


def is_deepspeed(path: Path, names: Iterable[str]) -> bool:
    """Return whether `path` is a tag directory, or a save directory that contains one."""
    if any(map(_FILE.fullmatch, names)):
        return True
    inside = (entry for entry in path.iterdir() if entry.is_dir())
    return any(_FILE.fullmatch(name) for entry in inside for name in names_if_readable(entry))


def is_one_file(name: str) -> bool:
    return _ONE_FILE.search(name) is not None


def has_parameter_directories(tag_directory: Path) -> bool:
    zero = tag_directory / ZERO
    return zero.is_dir() and any((entry / MASTER).is_file() for entry in zero.iterdir())
