"""Write benchmarks/results/private-names.md from the code; with --check, say if it is out of date.

The names are found in the code that runs beside torch: an attribute, an import or a `getattr` of
something that is not ours and begins with an underscore. What is known of each stands in KNOWN.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "benchmarks" / "results" / "private-names.md"
BESIDE_TORCH = (
    "daemon/zerotoolsd/trainer",
    "zerotools/integrations",
    "zerotools/jobs/preflight",
    "zerotools/public/lazy_reader.py",
    "zerotools/io/numeric/torch_float16_cast.py",
)
OURS = frozenset({"self", "cls", "os"})
PACKAGES = ("torch", "deepspeed", "transformers", "pytorch_lightning")


class PrivateName(NamedTuple):
    """A name that its package may change: the `file` in which it is, from which release to which,
    and what zerotools does where it is not there."""

    file: str
    releases: str
    without: str


_FSDP = "torch/distributed/fsdp/_fully_shard"
_C10D = "torch/distributed/distributed_c10d.py"
_MODULE = "torch/nn/modules/module.py"
_MODELS = "transformers/modeling_utils.py"
ALL = "2.8 to 2.14"
NO_JOB = "jobs of engine `torch` fail at the start"
NEITHER = "no job of the trainer starts"
KNOWN = {
    "_world": PrivateName(_C10D, ALL, "time limits of collectives cannot be set: jobs fail"),
    "_set_pg_timeout": PrivateName(_C10D, f"{ALL}, there deprecated", "`set_timeout` is taken"),
    "_get_default_store": PrivateName(_C10D, ALL, "callbacks do not wait for the other ranks"),
    "_fsdp_common": PrivateName(
        f"{_FSDP}/_fsdp_common.py", "its `ShardPlacementResult`: 2.12 on", "no `zero.tensor_ranks`"
    ),
    "_fully_shard": PrivateName(f"{_FSDP}/_fully_shard.py", ALL, "no `zero.tensor_ranks`"),
    "_get_fsdp_state": PrivateName(f"{_FSDP}/_fully_shard.py", ALL, NO_JOB),
    "_fsdp_param_group": PrivateName(f"{_FSDP}/_fsdp_state.py", ALL, NO_JOB),
    "_fsdp_param_groups": PrivateName(
        f"{_FSDP}/_fsdp_state.py", "2.12 on", "`_fsdp_param_group` is taken"
    ),
    "_sharded_param_data": PrivateName(f"{_FSDP}/_fsdp_param.py", ALL, NO_JOB),
    "_dtensor_spec": PrivateName("torch/distributed/tensor/_dtensor_spec.py", ALL, NO_JOB),
    "_utils": PrivateName("torch/distributed/tensor/_utils.py", ALL, NO_JOB),
    "_spec": PrivateName("torch/distributed/tensor/_api.py", ALL, "saves fail"),
    "_pytree": PrivateName("torch/utils/_pytree.py", ALL, NO_JOB),
    "_StorageInfo": PrivateName("torch/distributed/checkpoint/filesystem.py", ALL, NO_JOB),
    "_make_wrapper_subclass": PrivateName(
        "torch/_C/__init__.pyi", ALL, "jobs with `model.path` fail"
    ),
    "_foreach_mul_": PrivateName("torch/_C/_VariableFunctions.pyi", ALL, NO_JOB),
    "_reshape_alias": PrivateName("torch/_decomp/__init__.py", ALL, "jobs with `model.path` fail"),
    "_to_copy": PrivateName("torch/_decomp/decompositions.py", ALL, "jobs with `model.path` fail"),
    "_unsafe_view": PrivateName(
        "torch/_decomp/decompositions.py", ALL, "jobs with `model.path` fail"
    ),
    "_parameters": PrivateName(_MODULE, ALL, NEITHER),
    "_buffers": PrivateName(_MODULE, ALL, NEITHER),
    "_modules": PrivateName(_MODULE, ALL, NEITHER),
    "_non_persistent_buffers_set": PrivateName(_MODULE, ALL, NEITHER),
    "_initialize_params": PrivateName(
        "deepspeed/runtime/config.py", "0.19", "`submit` leaves the question to the ranks"
    ),
    "_copy_recovery_script": PrivateName(
        "deepspeed/runtime/engine.py", "0.19", "saves of engine `deepspeed` fail"
    ),
    "_convert_to_zero_parameters": PrivateName(
        "deepspeed/runtime/zero/partition_parameters.py",
        "0.19",
        "stage 3 of engine `deepspeed` fails at the start",
    ),
    "_attn_implementation": PrivateName(_MODELS, "5.23", "`model.attention` cannot be set"),
    "_init_weights": PrivateName(_MODELS, "5.23", "jobs without `model.path` fail"),
    "_keep_in_fp32_modules": PrivateName(_MODELS, "5.23", "nothing is kept in fp32 for it"),
    "_keep_in_fp32_modules_strict": PrivateName(_MODELS, "5.23", "as the line before"),
    "_no_split_modules": PrivateName(_MODELS, "5.23", "the model is gathered as a whole"),
    "_tp_plan": PrivateName(_MODELS, "5.23", "no `zero.tensor_ranks` for the model"),
    "_adjust_missing_and_unexpected_keys": PrivateName(
        _MODELS, "5.23", "jobs with `model.path` fail"
    ),
    "_signal_connector": PrivateName(
        "pytorch_lightning/trainer/trainer.py", "2.6", "its callback fails at the start"
    ),
    "_original_handlers": PrivateName(
        "pytorch_lightning/trainer/connectors/signal_connector.py",
        "2.6",
        "its callback fails at the start",
    ),
}
HEAD = """\
# Private names of other packages

<!-- Written by scripts/private_names.py; do not edit. -->

zerotools uses these names of torch, DeepSpeed, transformers and Lightning that begin with an
underscore, or lie in a module that does. Their authors may change them in any release. The releases
are those in whose sources the names were looked up, torch 2.8 to 2.14 among them. A test compares
the table with the code and with the installed packages.

| name | in | releases | used by | where it is not there |
|---|---|---|---|---|
"""


def private_names(tree: ast.AST) -> Iterator[str]:
    """The private names that a module takes of what is not its own."""
    own = {
        target.attr if isinstance(target, ast.Attribute) else target.name
        for target in ast.walk(tree)
        if (isinstance(target, ast.Attribute) and _is_own(target))
        or isinstance(target, (ast.FunctionDef, ast.ClassDef))
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGES):
            parts = [*(node.module or "").split("."), *(each.name for each in node.names)]
            yield from (part for part in parts if _is_private(part))
        elif isinstance(node, ast.Attribute) and _is_private(node.attr) and not _is_own(node):
            if node.attr not in own:
                yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and _is_private(str(name.value)):
                yield str(name.value)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in OURS


def found() -> dict[str, list[str]]:
    """Each private name, and the modules that use it."""
    names: dict[str, set[str]] = {}
    for place in BESIDE_TORCH:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for name in private_names(ast.parse(file.read_text("utf-8"))):
                names.setdefault(name, set()).add(file.relative_to(ROOT).as_posix())
    return {name: sorted(files) for name, files in names.items()}


def page() -> str:
    """The page. Raises KeyError: nothing is known of a name that the code uses."""
    rows = []
    used = found()
    for name in sorted(used, key=lambda each: (KNOWN[each].file, each)):
        known = KNOWN[name]
        modules = ", ".join(f"`{Path(each).name}`" for each in used[name])
        rows.append(
            f"| `{name}` | `{known.file}` | {known.releases} | {modules} | {known.without} |\n"
        )
    return HEAD + "".join(rows)


def main() -> int:
    """Write the page, or compare it."""
    text = page()
    if "--check" in sys.argv:
        return 0 if PAGE.read_text("utf-8") == text else 1
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
