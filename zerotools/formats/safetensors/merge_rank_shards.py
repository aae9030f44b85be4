"""Merge one safetensors file per rank (torch's HuggingFaceStorageWriter, transformers, NeMo), and
find lost files.

Each file records the starts of its blocks (`DCP_SHARDING_INFO`). No file records the shapes of the
whole tensors or the number of ranks, so the last block that exists counts as the end of a tensor.
If a file in the middle is lost, a number is missing in the file names, and the tensors have a hole.
If the last file is lost, only files of other kinds show this: an index, NeMo's list of names, or
the vocabulary in config.json.

Source: torch/distributed/checkpoint/hf_storage.py and _hf_utils.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Key, Problem, Tensor
from zerotools.core.errors import BadFile
from zerotools.formats.safetensors.header import Header
from zerotools.io.files.read_json import read_json
from zerotools.io.huggingface.model_sidecars import find_config

SHARD = re.compile(r"shard-(\d{5,})-model-(\d{5,})-of-(\d{5,})\.safetensors")
HF_METADATA = ".hf_metadata"
INDEX = "model.safetensors.index.json"
NOTE = (
    "the files do not store shapes: zerotools computes them from the ends of the last blocks, so "
    "it cannot detect a lost last shard"
)
_MAPPING = "fqn_to_file_index_mapping.json"
_LARGEST_JSON = 2**28
_MAX_MISSING = 1000
_EMBEDDING = re.compile(r"(.*\.)?(embed_tokens|wte|word_embeddings|tok_embeddings)\.weight")


def sharded_tensors(root: Path, headers: Mapping[str, Header]) -> dict[Key, Tensor]:
    """Return all tensors; each is joined from its blocks in all files.

    Raises:
        BadFile: two files record different dtypes or numbers of dimensions for one tensor.
    """
    found: dict[str, list[tuple[str, Box]]] = {}
    for name, header in headers.items():
        for key, entry in header.entries.items():
            start = (header.starts or {}).get(key, (0,) * len(entry.shape))
            found.setdefault(key, []).append((name, Box(start, entry.shape)))
    return {Key(key, "param"): _tensor(root, headers, key, blocks) for key, blocks in found.items()}


def _tensor(
    root: Path, headers: Mapping[str, Header], key: str, blocks: list[tuple[str, Box]]
) -> Tensor:
    first, box = blocks[0]
    dtype = headers[first].entries[key].dtype
    for name, other in blocks:
        kind = headers[name].entries[key].dtype
        if kind != dtype or len(other.shape) != len(box.shape):
            raise BadFile(
                f"{root / first} has {key} as {dtype} of {len(box.shape)} dimensions, but "
                f"{root / name} has it as {kind} of {len(other.shape)} dimensions; take another "
                "checkpoint"
            )
    stops = zip(*(other.stop for _, other in blocks), strict=True)
    chunks = [Chunk(other, name, headers[name].entries[key].begin) for name, other in blocks]
    return Tensor(dtype, tuple(max(stop) for stop in stops), tuple(chunks))


def shard_numbers(names: Iterable[str]) -> list[int]:
    """Return the shard number in each file name, which is the rank plus 1."""
    return sorted({int(match[1]) for name in names if (match := SHARD.fullmatch(name))})


def name_of_next(names: Iterable[str]) -> str:
    """Return the name of the shard that would follow the last shard in `names`."""
    last = max(name for name in names if SHARD.fullmatch(name))
    return re.sub(r"(?<=shard-)\d+", f"{max(shard_numbers([last])) + 1:05d}", last, count=1)


def missing_shards(root: Path, names: Iterable[str]) -> Iterator[Problem]:
    """Yield a problem for each shard number that is missing among the files, and for each file of
    the model that has no shard.
    """
    matches = [match for name in names if (match := SHARD.fullmatch(name))]
    numbers = {int(match[1]) for match in matches}
    known = matches[0] if matches else None
    if known is None:
        return
    gaps = (number for number in range(1, max(numbers)) if number not in numbers)
    for number, _ in zip(gaps, range(_MAX_MISSING), strict=False):
        name = f"shard-{number:05d}-model-{known[2]}-of-{known[3]}.safetensors"
        yield Problem(
            f"{root / name} is missing, but there are shards up to {max(numbers)}; copy or "
            "download it again",
            name,
        )
    parts = {int(match[2]) for match in matches}
    for number in range(1, min(int(known[3]), _MAX_MISSING) + 1):
        if number not in parts:
            name = f"shard-00001-model-{number:05d}-of-{known[3]}.safetensors"
            message = (
                f"{root} has no shard of model file {number} of {int(known[3])}; copy or download "
                "the model again"
            )
            yield Problem(message, name)


def problems_from_other_files(
    root: Path, last: str, tensors: Mapping[Key, Tensor]
) -> Iterator[Problem]:
    """Yield a problem for each tensor, or part of a tensor, that no shard has although another file
    shows that it exists: an index, NeMo's list of names or config.json.

    A problem names the last shard, `last`, as its file, so the checkpoint cannot be exported. Only
    if the index counts more bytes, which may be due to another dtype, does it name no file.
    """
    index = _json(root / INDEX)
    listed = (
        (INDEX, index.get("weight_map")),
        (f"{HF_METADATA}/{_MAPPING}", _json(root / HF_METADATA / _MAPPING)),
    )
    for file, names in listed:
        for name in names if isinstance(names, dict) else ():
            if isinstance(name, str) and Key(name, "param") not in tensors:
                yield Problem(
                    f"{root / file} lists {name}, which no shard holds; copy or download the "
                    "model again",
                    last,
                    name,
                )
    yield from _short_total(root, last, index.get("metadata"), tensors)
    yield from _short_vocabulary(root, last, tensors)


def is_end_known(root: Path, tensors: Mapping[Key, Tensor]) -> bool:
    """Return whether the index or config.json shows where the tensors end. Otherwise, a missing
    last shard would not be noticed.
    """
    about = _json(root / INDEX).get("metadata")
    counts = (
        (about.get("total_parameters"), about.get("total_size")) if isinstance(about, dict) else ()
    )
    return any(type(count) is int for count in counts) or any(
        tensor.shape and tensor.shape[0] == size
        for _, size in _vocabularies(root)
        for key, tensor in tensors.items()
        if _EMBEDDING.fullmatch(key.name)
    )


def _vocabularies(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield the path of the checkpoint's config.json, and the number of rows that the embedding has
    according to this file."""
    path = find_config(root)
    if path is None:
        return
    config = _json(path)
    inner = config.get("text_config")
    size = config.get("vocab_size", inner.get("vocab_size") if isinstance(inner, dict) else 0)
    if type(size) is int:
        yield path, size


def _short_total(
    root: Path, last: str, about: Any, tensors: Mapping[Key, Tensor]
) -> Iterator[Problem]:
    """Yield a problem if the shards have fewer elements or bytes than the index records. The
    recorded bytes depend on the dtype that the model had when it was saved.
    """
    if not isinstance(about, dict):
        return
    count, size = about.get("total_parameters"), about.get("total_size")
    elements = sum(tensor.numel for tensor in tensors.values())
    held = sum(tensor.nbytes for tensor in tensors.values())
    if type(count) is int and elements < count:
        yield Problem(
            f"{root / INDEX} counts {count} elements, but the shards hold {elements}; copy or "
            "download the model again",
            last,
        )
    elif type(size) is int and held < size:
        yield Problem(
            f"{root / INDEX} gives {size} bytes of weights, but the shards hold {held}: the last "
            "shard is missing, or the index is for another dtype; copy or download the model again"
        )


def _short_vocabulary(root: Path, last: str, tensors: Mapping[Key, Tensor]) -> Iterator[Problem]:
    for path, size in _vocabularies(root):
        for key, tensor in tensors.items():
            rows = tensor.shape[0] if tensor.shape else 0
            if _EMBEDDING.fullmatch(key.name) and rows < size:
                yield Problem(
                    f"{root}: {key.name} ends at row {rows}, but should have {size} rows "
                    f"according to {path.name}: the last shard is missing; copy or download it "
                    "again",
                    last,
                    key.name,
                )


def _json(path: Path) -> dict[str, Any]:
    """Return the content of a small JSON file; an empty dict if the file does not exist or is not
    an object."""
    try:
        tree: Any = read_json(path, _LARGEST_JSON)
    except (OSError, BadFile, ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


@dataclass(frozen=True, slots=True)
class _Cut:
    """The split of a tensor along one dimension.

    Attributes:
        pieces: the number of parts that were found.
        first, last: the sizes of the first and the last part along the dimension.
        end: the index after the last part.
        has_hole: True if a part between the first and the last part is missing.
    """

    pieces: int
    first: int
    last: int
    end: int
    has_hole: bool

    @property
    def is_ended(self) -> bool:
        """True if the last part is smaller than the first, which proves that it is the tensor's
        end.
        """
        return self.last < self.first

    def is_cut_into(self, ranks: int) -> bool:
        """Return whether torch splits a tensor over `ranks` ranks into exactly these parts."""
        return not self.has_hole and self.pieces == ranks and -(-self.end // ranks) == self.first


@dataclass(frozen=True, slots=True)
class LostShards:
    """The files of a model that are lost, or may be lost.

    Attributes:
        problems: the problems for files that are certainly missing, and for tensors with shapes
            that are unknown without these files.
        unknown: the keys of tensors with unknown shapes.
        doubtful: name of an existing file -> a sentence about other files that it suggests. These
            files may be lost, or may never have existed.
    """

    problems: tuple[Problem, ...]
    unknown: frozenset[Key]
    doubtful: Mapping[str, str]


def lost_shards(root: Path, tensors: Mapping[Key, Tensor], names: Sequence[str]) -> LostShards:
    """Find the lost files of a model, from the names `names` of its existing files and from its
    tensors.

    Torch's writer makes one file for each rank and each file of the model: rank 1's part of the
    tensors in file 1 of 3 is in `shard-00002-model-00001-of-00003`. Every rank writes a piece,
    perhaps an empty one, of every tensor that is split over the ranks. So a file is certainly
    missing if a tensor has fewer pieces than tensors in other files. The shape of a tensor that
    lost its last pieces is unknown.

    Other files may never have existed, because only one rank writes a tensor that every rank holds
    whole.
    """
    files: dict[int, dict[int, str]] = {}
    for name in names:
        match = SHARD.fullmatch(name)
        if match is not None:
            files.setdefault(int(match[2]), {})[int(match[1])] = name
    numbers = {number for there in files.values() for number in there}
    ranks = max(numbers, default=0)
    short = {part: there for part, there in files.items() if len(there) < ranks}
    cuts = {key: cut for key, tensor in tensors.items() if (cut := _cut_of(tensor)) is not None}
    whole = {name for part, there in files.items() if part not in short for name in there.values()}
    known = {  # without tensors with empty pieces, which count as one piece
        cut.pieces for key, cut in cuts.items() if cut.last and _files(tensors[key]) <= whole
    }
    problems: list[Problem] = []
    unknown: set[Key] = set()
    doubtful: dict[str, str] = {}
    for there in short.values():
        own = set(there.values())
        of_file = {key: cut for key, cut in cuts.items() if _files(tensors[key]) <= own}
        allowed = known or {n for n in range(2, ranks + 1) if ranks % n == 0}
        lost = {key: c for key, c in of_file.items() if not any(map(c.is_cut_into, allowed))}
        absent = sorted(numbers - there.keys())  # `missing_shards` reports ranks without any file
        if not absent:
            continue
        first = next(iter(there.values()))
        missing = [SHARD.sub(rf"shard-{n:05d}-model-\2-of-\3.safetensors", first) for n in absent]
        if not lost:
            doubtful[first] = (
                f"{root / missing[0]} does not exist, and may never have existed: no tensor "
                "of this part of the model is split over all ranks"
            )
            continue
        said = f"other files of the model have {ranks} shards: copy or download the model again"
        problems += [  # the lost file may also have held whole tensors
            Problem(f"{root / name} is missing; {said}", name, prevents_output=True)
            for name in missing
        ]
        for key, cut in lost.items():
            if not (cut.is_ended or cut.has_hole):
                unknown.add(key)
                why = (
                    f"{root / missing[0]} is missing: {key} ends at {cut.end} in the other shards, "
                    "and its shape is not known; copy or download it again"
                )
                problems.append(Problem(why, missing[0], key.name, prevents_output=True))
    return LostShards(tuple(problems), frozenset(unknown), doubtful)


def _files(tensor: Tensor) -> set[str]:
    return {chunk.file for chunk in tensor.chunks}


def _cut_of(tensor: Tensor) -> _Cut | None:
    """Return the split of a tensor; None if the tensor is not split, or is split along several
    dimensions.
    """
    cut_along = list(_dimensions(tensor))
    if len(tensor.chunks) < 2 or len(cut_along) != 1:
        return None
    (dim,) = cut_along
    pieces = sorted({(c.box.start[dim], c.box.shape[dim]) for c in tensor.chunks})
    full = [piece for piece in pieces if piece[1]]
    if not full:
        return None
    ends = [start + length for start, length in pieces]
    starts = [start for start, _ in pieces[1:]]
    has_hole = pieces[0][0] > 0 or any(a < b for a, b in zip(ends, starts, strict=False))
    return _Cut(len(pieces), full[0][1], pieces[-1][1], max(ends), has_hole)


def _dimensions(tensor: Tensor) -> Iterator[int]:
    for dim, size in enumerate(tensor.shape):
        if any(chunk.box.shape[dim] != size for chunk in tensor.chunks):
            yield dim
