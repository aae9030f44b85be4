"""Read the rules that say how each parameter is divided among tensor-parallel ranks. They come from
the checkpoint or from the user.

AutoTP, Megatron-DeepSpeed and other programs put `universal_checkpoint_info` into the files. It has
a list for each kind of rule. The list contains regular expressions, which must match at the start
of a parameter's name. (`core.linear_time_regex` matches them, because a crafted pattern could run
forever.) Since 0.19.8, an `affine_map` may describe the positions of the parameters; then only the
map is used. The shards of a parameter that no pattern matches are joined along dimension 0, as
DeepSpeed's converter does.

Source: DeepSpeed `checkpoint/ds_to_universal.py` (merge_tp_slices), `checkpoint/affine.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Opaque
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.tensor_parallel_placement import (
    ExplicitBlocks,
    Fused,
    PlacedBlock,
    Replicated,
    ShardingRule,
    Split,
)
from zerotools.formats.deepspeed.schema.typed_fields import Fields, counts_of
from zerotools.io.files.regular_files import read_user_file

if TYPE_CHECKING:
    from zerotools.core.linear_time_regex import NamePatterns

AFFINE_VERSION = 1
ShardShapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class ShardingRules:
    """The rules that say how a checkpoint's tensors are divided among tensor-parallel ranks. `path`
    is the file that has the rules, for messages.
    """

    path: Path
    replicated: Sequence[str] = ()
    averaged: Sequence[str] = ()
    along: Mapping[int, Sequence[str]] = field(default_factory=dict)
    pairs: Sequence[str] = ()
    fused: Sequence[tuple[str, tuple[int, ...], int]] = ()
    affine: Mapping[str, Any] | None = None
    default_dim: int | None = 0

    def rule_of(
        self, name: str, shards: ShardShapes, otherwise: ShardingRule | None = None
    ) -> ShardingRule:
        """Return the rule for one tensor. `shards` are the shapes that the tensor has on the
        ranks, in rank order.

        `otherwise` is the rule for a name that no pattern matches, instead of the default rule.

        Raises:
            Unsupported: the shards hold values that were computed from the tensor (averages, scaled
                copies).
        """
        matched = self._patterns.matching(name)
        for pattern in matched:
            if self.affine is not None and pattern in self.affine:
                return _pieces(self.path, name, self.affine[pattern], shards)
        for pattern in matched:
            if pattern in self._fused:
                return self._fused[pattern]
        if self._says("replicated", matched):
            return Replicated()
        for dim in self.along:
            if self._says(f"split {dim}", matched):
                return Split(dim)
        if self._says("averaged", matched):
            raise Unsupported(
                f"{self.path}: {name} differs between tensor-parallel ranks and would have to be "
                "averaged, which zerotools does not do; leave it out with --exclude"
            )
        if self._says("pairs", matched):
            half = sum(shape[0] for shape in shards) // 2
            return Fused(0, (half, half))
        if otherwise is not None:
            return otherwise
        if self.default_dim is None:
            raise Unsupported(
                f"it is not known how {name} is split among the tensor-parallel ranks; add a rule "
                "for it to the file of --layout"
            )
        return Split(self.default_dim)

    @cached_property
    def _fused(self) -> dict[str, Fused]:
        return {pattern: Fused(dim, sizes) for pattern, sizes, dim in reversed(self.fused)}

    @cached_property
    def _lists(self) -> dict[str, frozenset[str]]:
        lists = {"replicated": self.replicated, "averaged": self.averaged, "pairs": self.pairs}
        lists |= {f"split {dim}": patterns for dim, patterns in self.along.items()}
        return {kind: frozenset(patterns) for kind, patterns in lists.items()}

    def _says(self, kind: str, matched: Sequence[str]) -> bool:
        return not self._lists[kind].isdisjoint(matched)

    @cached_property
    def _patterns(self) -> NamePatterns:
        from zerotools.core.linear_time_regex import NamePatterns

        fused = (pattern for pattern, _, _ in self.fused)
        lists = (pattern for patterns in self._lists.values() for pattern in patterns)
        return NamePatterns([*(self.affine or ()), *fused, *lists], self.path)


def parse_rules(path: Path, info: Any) -> ShardingRules:
    """Parse the value of `universal_checkpoint_info` into rules.

    Raises:
        BadFile: the value is damaged.
        Unsupported: the affine maps have a newer version.
    """
    fields = Fields(path, info, "'universal_checkpoint_info'")
    affine = fields.maybe("affine_map", dict)
    if affine is not None and affine.get("version", AFFINE_VERSION) != AFFINE_VERSION:
        raise Unsupported(
            f"{path} has affine maps of version {affine.get('version')!r:.20}, but zerotools "
            f"reads only version {AFFINE_VERSION}"
        )
    return ShardingRules(
        path,
        replicated=_patterns(fields, "tp_replicated_parameter_patterns"),
        averaged=_patterns(fields, "parameter_to_average_patterns"),
        along={1: _patterns(fields, "parameter_with_row_parallelism_patterns")},
        pairs=_patterns(fields, "parameter_with_2_sub_params_cat_dim_0"),
        fused=[
            found
            for part in fields.maybe("parameter_with_sub_params", list) or []
            for found in _sub_params(path, part)
        ],
        affine=_affine(Fields(path, affine, "the affine map")) if affine else None,
    )


def read_layout(path: Path) -> ShardingRules:
    r"""Read rules from a TOML file: name patterns with `split` (a dimension), `replicated` or
    `fused`.

        [[rule]]
        pattern = ".*\\.o_proj\\.weight"
        split = 1

    Raises:
        BadRequest: the file is missing, is not TOML, or contains something else.
        BadFile: `path` is not a regular file, or the file is too large.
    """
    import tomllib

    try:
        tree = tomllib.loads(read_user_file(path).decode())
    except ValueError as error:
        raise BadRequest(f"{path} is not valid TOML: {error}; correct it") from None
    except RecursionError:
        raise BadRequest(
            f"{path} is not valid TOML, because it is nested too deeply; correct it"
        ) from None
    rules = tree.get("rule", [])
    if not isinstance(rules, list):
        raise BadRequest(f"{path}: rule is not a list of tables; write [[rule]] above each")
    replicated: list[str] = []
    along: dict[int, list[str]] = {}
    fused: list[tuple[str, tuple[int, ...], int]] = []
    for rule in rules:
        pattern = rule.get("pattern") if isinstance(rule, dict) else None
        if not isinstance(pattern, str):
            raise BadRequest(f"{path}: a [[rule]] has no pattern; add one")
        if rule.get("replicated") is True:
            replicated.append(pattern)
        elif type(rule.get("split")) is int:
            along.setdefault(rule["split"], []).append(pattern)
        elif isinstance(rule.get("fused"), list):
            dim = rule.get("dim", 0)
            if type(dim) is not int or not all(type(n) is int and n > 0 for n in rule["fused"]):
                raise BadRequest(f"{path}: rule {pattern!r} needs fused = [SIZES] and dim = DIM")
            fused.append((pattern, tuple(rule["fused"]), dim))
        else:
            raise BadRequest(
                f"{path}: rule {pattern!r} needs one of split = DIM, replicated = true, fused = "
                "[SIZES]"
            )
    return ShardingRules(path, replicated=replicated, along=along, fused=fused, default_dim=None)


def _patterns(fields: Fields, key: str) -> list[str]:
    found = fields.maybe(key, list) or []
    if not all(isinstance(pattern, str) for pattern in found):
        raise fields.fault(f"{key!r} is not a list of texts")
    return found


def _affine(fields: Fields) -> dict[str, Any] | None:
    found = fields.maybe("params", dict)
    if not all(isinstance(pattern, str) for pattern in found or ()):
        raise fields.fault("the affine map has patterns that are not text")
    return found


def _sub_params(path: Path, part: Any) -> list[tuple[str, tuple[int, ...], int]]:
    """Parse a SubparamShape, a parameter that consists of several parts along the split dimension.
    Return (pattern, sizes of the parts, split dimension) for each pattern of parameter names.
    """
    value = part.state if isinstance(part, Opaque) else part
    if not isinstance(value, Mapping):
        raise BadFile(
            f"{path}: sub-parameters are a {type(part).__name__}, but must be a dict; copy or "
            "download the file again"
        )
    shape, dim = value.get("shape"), value.get("partition_dim")
    if not isinstance(shape, list | tuple) or type(dim) is not int or not 0 <= dim < len(shape):
        raise BadFile(
            f"{path}: sub-parameters have no shape and dimension; copy or download the file again"
        )
    sizes = shape[dim] if isinstance(shape[dim], list | tuple) else (shape[dim],)
    patterns = value.get("patterns") or ()
    if not isinstance(patterns, list | tuple) or not all(isinstance(p, str) for p in patterns):
        raise BadFile(
            f"{path}: the patterns of sub-parameters are not a list of texts; copy or download the "
            "file again"
        )
    return [(pattern, counts_of(sizes, path, "sub-parameters"), dim) for pattern in patterns]


def _pieces(path: Path, name: str, value: Any, shards: ShardShapes) -> ShardingRule:
    """Return the rule of an affine map. Each view in the map must be a box, both in the shard and
    in the full tensor; all views that DeepSpeed writes are boxes.
    """
    fields = Fields(path, value, f"the affine map of {name}")
    shape = counts_of(fields.need("logical_shape", object), path, f"the affine map of {name}")
    ranks = fields.need("ranks", dict)
    of_rank = []
    taken: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for rank, shard in enumerate(shards):
        entry = ranks.get(rank, ranks.get(str(rank)))
        if not isinstance(entry, Mapping):
            raise BadFile(
                f"{path}: the affine map of {name} lacks rank {rank}; copy or download the file "
                "again"
            )
        placed = []
        pieces = entry.get("pieces", ())
        if not isinstance(pieces, list | tuple):
            raise BadFile(
                f"{path}: the affine map of {name} has no list of pieces; copy or download the "
                "file again"
            )
        for piece in pieces:
            one = _piece(path, name, piece, shape, shard)
            block = (one.start, one.shard.shape)
            if block not in taken:
                taken.add(block)
                placed.append(one)
        of_rank.append(tuple(placed))
    return ExplicitBlocks(shape, tuple(of_rank))


def _piece(
    path: Path, name: str, piece: Any, whole: tuple[int, ...], shard: tuple[int, ...]
) -> PlacedBlock:
    fields = Fields(path, piece, f"a piece of {name}")
    if fields.tree.get("scale", 1.0) != 1.0:
        raise Unsupported(
            f"{path}: the shards hold {name} scaled by {fields.tree['scale']}, and zerotools does "
            f"not scale values; load the checkpoint with DeepSpeed, or leave {name} out with "
            "--exclude"
        )
    block = counts_of(fields.tree.get("shape", ()), path, f"a piece of {name}")
    source = _corner(path, name, fields.tree.get("source"), whole, block)
    dest = _corner(path, name, fields.tree.get("dest"), shard, block)
    return PlacedBlock(Box(dest, block), source)


def _corner(
    path: Path, name: str, view: Any, shape: tuple[int, ...], block: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the index at which a strided view of a row-major tensor begins. The view must be a
    box.
    """
    strides = row_major_strides(shape)
    if not isinstance(view, list | tuple) or len(view) != 2 or type(view[0]) is not int:
        raise BadFile(f"{path}: in the affine map of {name}, a piece has no offset and strides")
    offset, given = view
    if not isinstance(given, list | tuple):
        raise BadFile(f"{path}: in the affine map of {name}, a piece has no strides")
    if 0 in block:
        return (0,) * len(block)
    fits = len(given) == len(block) == len(shape) and all(
        n == 1 or a == b for n, a, b in zip(block, given, strides, strict=True)
    )
    if not fits or not 0 <= offset < max(1, prod(shape)):
        raise Unsupported(
            f"{path}: in the affine map of {name}, a piece is not a rectangular part of a "
            f"tensor of shape {shape}"
        )
    start = []
    for stride in strides:
        start.append(offset // stride if stride else 0)
        offset -= start[-1] * stride
    if any(a + n > size for a, n, size in zip(start, block, shape, strict=True)):
        raise Unsupported(
            f"{path}: in the affine map of {name}, a piece is not a rectangular part of a "
            f"tensor of shape {shape}"
        )
    return tuple(start)
