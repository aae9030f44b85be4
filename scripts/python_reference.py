"""docs/reference/python.md, from the functions of `zerotools` and the values that they return."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import zerotools
from zerotools.ops.comparison.diff_result import CheckpointDiff, TensorDifference
from zerotools.ops.estimate.fit_search import Way
from zerotools.ops.estimate.offload_table import Row
from zerotools.ops.thinning.carry_out_thinning import Outcome
from zerotools.public.command_options.declare_and_bind_options import (
    DeclaredOption,
    OptionKind,
    declared_options,
)
from zerotools.public.command_options.read_options import ReadingOptions
from zerotools.public.compare_checkpoints import DiffKeywords
from zerotools.public.consolidate_and_convert import ConsolidateKeywords, ConvertKeywords
from zerotools.public.estimate_memory import Estimate, EstimateKeywords
from zerotools.public.gather_shards import GatherKeywords, GatherResult
from zerotools.public.inspect_checkpoint import InspectResult
from zerotools.public.make_and_apply_deltas import (
    ApplyKeywords,
    ApplyResult,
    DeltaKeywords,
    DeltaResult,
)
from zerotools.public.reshard_checkpoint import ReshardKeywords
from zerotools.public.run_conversion import ConversionResult
from zerotools.public.salvage_weights import SalvageKeywords, SalvageResult
from zerotools.public.serve_checkpoint import ServedCheckpoint, ServeKeywords
from zerotools.public.thin_checkpoints import ThinKeywords, ThinResult
from zerotools.public.verify_checkpoint import VerifyKeywords, VerifyResult

HEAD = """\
# Python

<!-- Written by scripts/make_reference.py from the functions of zerotools; do not edit. -->

`import zerotools` is fast: it imports numpy only when you read values, and torch only when you
ask for torch tensors. [Ten recipes](../how-to/use-from-python.md) show the functions together.

```pycon
>>> import zerotools
>>> reader = zerotools.open("tests/golden/zerotools-0.1.0/step-00000003")
>>> reader
<zerotools.Reader of tests/golden/zerotools-0.1.0/step-00000003: dcp, 12 names>
>>> norm = reader["model.norm.weight"]
>>> norm.shape, str(norm.dtype)
((16,), 'float32')
>>> norm.numpy("bf16").dtype.name
'bfloat16'
>>> reader["model.norm.weight", "exp_avg"].numpy().shape
(16,)
>>> sorted(reader.roles("model.norm.weight"))
['exp_avg', 'exp_avg_sq', 'param', 'step']

>>> a, b = (f"tests/golden/deepspeed-0.19.8/{case}-bf16-w2/checkpoint" for case in ("z3", "z2"))
>>> found = zerotools.inspect(a)
>>> found.format, found.stage, found.world_size, found.step, found.is_whole
('deepspeed', 3, 2, 2, True)
>>> plan = zerotools.consolidate(a, "model", dtype="bf16", dry_run=True)
>>> plan.written, plan.tensors, list(plan.files)
(False, 14, ['model.safetensors'])
>>> zerotools.verify(a, fast=True).verdict.value
'unchecked'
>>> found = zerotools.diff(a, b, role="param")
>>> found.is_equal, found.counts["equal"]
(True, 13)
>>> [(point.what, point.a, point.b) for point in zerotools.diff(a, b).run.differences]
[('ds_config.zero_optimization.stage', 3, 2)]
>>> planned = zerotools.thin(b)
>>> sorted(planned.dropped), planned.freed_bytes > 0
(['exp_avg', 'exp_avg_sq', 'step'], True)

>>> machine = {"gpus": 8, "gpu_memory": "48GiB", "host_memory": "512GiB"}
>>> found = zerotools.estimate("7B", sequence_length=2048, **machine)
>>> found.fits, found.stage, found.offload
(True, 1, 'none')

```

## What all functions have in common

- The keywords are the options of the command, with `_` instead of `-`, and have the meaning that
  [the command line](command-line.md) and `help(zerotools.consolidate)` show. Only `--from` has
  another name, `weights_from`. Options for the printed output (`--json`, `inspect --tensors`, `diff --top`,
  `verify --strict`, `estimate --print`, `--write` and `--way`) have no keyword.
- A keyword without a default below is None or False by default. One without a type is True or False, or one
  of the words of the option.
- `path` is a checkpoint, or the directory of a run: then its newest checkpoint is taken.
- A path is text or a `Path`, of this machine or [in an object store](../how-to/object-stores.md):
  `s3://bucket/key`. A size is a number of bytes or text such as `"5GB"`, a time a number of
  seconds or text such as `"30d"`. A keyword for several texts also takes a single one.
- `progress` is a callable that gets a `ProgressUpdate` (`stage`, `done` and `total` bytes) from
  time to time, or True for a bar of tqdm: a widget in a notebook, otherwise text on stderr.
- `dry_run=True` returns the plan as a value of the same class, and writes no file.
- A returned value is frozen, and `to_json()` converts it to plain values. `notes` and `warnings`
  have the sentences that the command prints on stderr.

## Errors

`zerotools.BadRequest` (the request is wrong), `BadFile` (a file is damaged, incomplete or not a
checkpoint) and `Unsupported` are subclasses of `ZerotoolsError`; `gather` and `thin` raise other
subclasses, too. `exit_code` is the [status](exit-codes.md) of the command. An unknown keyword is a
`TypeError`, and a value of another type a `BadRequest`. Results can be pickled.

## Read tensors

| | |
|---|---|
| `zerotools.open(path, tag=None, layout=None, section=None)` | a `Reader` of a checkpoint in any format; only metadata is read |
| `for name in reader`, `reader.keys()` | names of parameters and buffers, tied names included |
| `reader[name]` | an `Entry`: the parameter (for a ZeRO run, its fp32 master weight); if there is no such parameter, the buffer |
| `reader[name, role]` | an `Entry` of another role: `param16`, `exp_avg`, `step`, ... |
| `reader.roles(name)` | the roles of this name |
| `reader.checkpoint` | the metadata behind the reader: aliases, state, problems, and the file and offset of every byte |
| `entry.shape`, `entry.dtype`, `entry.nbytes` | as stored |
| `entry.numpy(dtype=None)` | a numpy array; bfloat16 and float8 are dtypes of ml_dtypes; with a `dtype` a quantised weight is multiplied by its scales, or refused if they are not known |
| `entry.torch(dtype=None)` | a torch tensor on the CPU |
| `zerotools.load_state_dict(path, dtype=None, role="param", tag=None, layout=None, section=None, framework="torch")` | all tensors of a role by name; `param` includes buffers; tied names share one tensor; integers, and what transformers keeps in fp32, keep their dtype; with a `dtype` [quantised weights](../how-to/quantised-weights.md) are made plain; `framework="numpy"` gives arrays |

Write a dtype as `"bf16"`, `"bfloat16"`, `torch.bfloat16` or a numpy dtype. An unknown name is a
`KeyError`.

Casts give the same bits as torch's (except for NaN): they round to nearest even, float64 becomes
float16 through float32, and in float8_e4m3fn larger values become 448. A finite value that is too
large for the requested dtype is a `BadRequest`. Sparse, nested, quantized and meta tensors, numpy
arrays, pickled modules, and views with the negative or conjugate bit set raise `Unsupported`.
"""

FUNCTIONS: dict[str, tuple[type, tuple[type, ...]]] = {
    "inspect": (ReadingOptions, (InspectResult,)),
    "consolidate": (ConsolidateKeywords, (ConversionResult,)),
    "reshard": (ReshardKeywords, ()),
    "convert": (ConvertKeywords, ()),
    "verify": (VerifyKeywords, (VerifyResult,)),
    "diff": (DiffKeywords, (CheckpointDiff, TensorDifference)),
    "salvage": (SalvageKeywords, (SalvageResult,)),
    "thin": (ThinKeywords, (ThinResult, Outcome)),
    "gather": (GatherKeywords, (GatherResult,)),
    "delta": (DeltaKeywords, (DeltaResult,)),
    "apply": (ApplyKeywords, (ApplyResult,)),
    "serve": (ServeKeywords, (ServedCheckpoint,)),
    "estimate": (EstimateKeywords, (Estimate, Row, Way)),
}
"""The functions, each with its options and the values that are described after it."""

OF_A_RUN = "`path` is a checkpoint, or the directory of a run: then its newest checkpoint is taken."
VALUES = {
    OptionKind.TEXT: "text",
    OptionKind.INTEGER: "integer",
    OptionKind.NUMBER: "number",
    OptionKind.PAIR: "two numbers",
    OptionKind.WORDS: "one text or several",
    OptionKind.PATH: "path",
    OptionKind.PATH_OR_FLAG: "path, or True",
    OptionKind.SIZE: "size",
    OptionKind.SPAN: "time",
    OptionKind.PART: '`"I/N"`',
    OptionKind.GPUS: "number or text",
}


def python_page() -> str:
    """The whole page."""
    lines = [HEAD.rstrip()]
    for name, (declaration, results) in FUNCTIONS.items():
        lines += _function(name, declaration)
        for result in results:
            lines += _result(result)
    return "\n".join(lines) + "\n"


def _function(name: str, declaration: type) -> Iterator[str]:
    function = getattr(zerotools, name)
    text = re.split(r"\n\n(?:Options|Raises):\n", inspect.getdoc(function) or "")[0]
    own = inspect.signature(function).parameters.values()
    declared = declared_options(declaration)
    first = [each.name for each in own if each.default is each.empty and each.name not in declared]
    required = [f"{each.keyword}=..." for each in declared.values() if each.is_required]
    yield f"\n## zerotools.{name}({', '.join([*first, *required, '...'])})\n"
    yield text.replace(OF_A_RUN, "").rstrip()
    command = f"[`zerotools {name}`](command-line.md#zerotools-{name})"
    yield f"\nKeywords of {command}: {', '.join(map(_keyword, declared.values()))}."


def _keyword(each: DeclaredOption) -> str:
    """The keyword with its default, unless that is None or False, and with its type, unless it is
    True or False or one of the words that the command takes."""
    default = "" if each.default in (None, False) else f"={each.default!r}".replace("'", '"')
    kind = VALUES.get(each.kind) if not each.choices else None
    notes = [*([kind] if kind else []), *(["required"] if each.is_required else [])]
    return f"`{each.keyword}{default}`" + (f" ({'; '.join(notes)})" if notes else "")


def _result(result: type) -> Iterator[str]:
    yield f"\n### {result.__name__}\n"
    yield _as_list(inspect.getdoc(result) or "")
    named = fields(result)  # type: ignore[arg-type]  # every result is a dataclass
    yield "\n" + ", ".join(f"`{each.name}: {_type(each.type)}`" for each in named) + ".\n"
    for name, found in vars(result).items():
        if isinstance(found, property) and not name.startswith("_"):
            said = (inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " ")
            yield f"- `{name}`: {said}"


def _as_list(text: str) -> str:
    """Return the docstring with its section `Attributes:` as a Markdown list."""
    head, found, section = text.partition("\n\nAttributes:\n")
    if not found:
        return text
    section, _, rest = section.partition("\n\n")
    entries = re.split(r"\n(?= {4}\S)", section)
    named = [each.strip().partition(": ") for each in entries]
    lines = [
        f"- {', '.join(f'`{name}`' for name in names.split(', '))}: {' '.join(meaning.split())}"
        for names, _, meaning in named
    ]
    return "\n\n".join(part for part in (head, "\n".join(lines), rest) if part)


def _type(hint: Any) -> str:
    return str(hint if isinstance(hint, str) else getattr(hint, "__name__", hint))
