"""Convert plain TOML or JSON values to dataclasses with fields that `declaration.key` declares.

Values are never converted to another type: an integer is not a float, `1.0` is not an integer, and
a string is not a list. All problems are collected, so that a user sees all of them in one message.
If an unknown key or value belongs to another program, the message names the key or value that the
job file has instead.
"""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, is_dataclass
from typing import Any, cast, get_args, get_origin

from zerotools.jobs.binding.declaration import keys_of

MAX_INT = 2**63 - 1
MAX_DEPTH = 32
MAX_UNKNOWN = 20
"""A message lists at most this many unknown keys of one table, because the search for a similar
key takes time."""
_HINTS: dict[type[Any], dict[str, Any]] = {}
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


KEYS: Mapping[str, str] = {
    **dict.fromkeys(("lr", "peak_lr", "max_lr"), "train.learning_rate"),
    **dict.fromkeys(("min_lr", "lr_min"), "train.min_learning_rate"),
    **dict.fromkeys(("max_steps", "num_steps", "iterations", "total_steps"), "train.steps"),
    **dict.fromkeys(("num_train_epochs", "num_epochs", "n_epochs"), "train.epochs"),
    **dict.fromkeys(
        (
            "per_device_train_batch_size",
            "train_micro_batch_size_per_gpu",
            "micro_batch",
            "micro_bs",
        ),
        "train.micro_batch_size",
    ),
    **dict.fromkeys(("train_batch_size", "global_batch_size", "bs", "batch"), "train.batch_size"),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "grad_accum", "accumulate_grad_batches"),
        "train.micro_batch_size (the job computes the accumulation)",
    ),
    **dict.fromkeys(("wd", "decay"), "train.weight_decay"),
    **dict.fromkeys(("warmup", "num_warmup_steps", "warmup_num_steps"), "train.warmup_steps"),
    **dict.fromkeys(("lr_scheduler_type", "scheduler", "lr_scheduler"), "train.schedule"),
    **dict.fromkeys(("optim", "optimiser"), "train.optimizer"),
    **dict.fromkeys(("gradient_clipping", "grad_clip", "clip_grad_norm"), "train.max_grad_norm"),
    **dict.fromkeys(("gradient_checkpointing", "checkpointing"), "train.activation_checkpointing"),
    **dict.fromkeys(("dtype", "torch_dtype", "mixed_precision", "bf16", "fp16"), "train.precision"),
    **dict.fromkeys(("torch_compile", "compiled"), "train.compile"),
    **dict.fromkeys(("num_gpus", "ngpus", "n_gpus", "gpu", "nproc_per_node"), "gpus"),
    **dict.fromkeys(("world_size", "nproc", "num_processes", "workers"), "ranks"),
    **dict.fromkeys(("output", "out", "save_dir", "output_path", "checkpoint_dir"), "output_dir"),
    **dict.fromkeys(("save_steps", "save_every", "save_interval"), "checkpoint.every"),
    **dict.fromkeys(("save_total_limit", "keep"), "checkpoint.keep_last"),
    **dict.fromkeys(("eval_steps", "eval_every", "eval_interval"), "eval.every"),
    **dict.fromkeys(("resume", "resume_from_checkpoint", "load"), "resume_from"),
    **dict.fromkeys(
        ("seq_len", "seq_length", "max_length", "max_seq_length", "block_size", "context_length"),
        "data.sequence_length",
    ),
    **dict.fromkeys(
        ("dataset", "train_file", "train_data", "files"), "data.text, data.tokens or data.examples"
    ),
    **dict.fromkeys(
        ("model_name_or_path", "pretrained_model", "model_path", "model_name"), "model.path"
    ),
    **dict.fromkeys(("zero_stage", "zero_optimization"), "zero.stage"),
    **dict.fromkeys(("cpu_offload", "offload_optimizer"), "offload.optimizer"),
    **dict.fromkeys(("offload_param", "offload_params"), "offload.params"),
    **dict.fromkeys(("random_seed", "manual_seed"), "seed"),
    **dict.fromkeys(("timeout", "walltime", "max_time"), "time_limit"),
    **dict.fromkeys(("environment", "envs"), "env"),
}
"""The name of a key in another program -> the name of the same key in the job file.

Upper and lower case are not distinguished.
"""
VALUES: Mapping[str, str] = {
    **dict.fromkeys(("gpu", "cuda:0", "nvidia", "gpus"), "cuda"),
    **dict.fromkeys(("float16", "half", "fp-16", "16"), "fp16"),
    **dict.fromkeys(("bfloat16", "bf-16", "brain"), "bf16"),
    **dict.fromkeys(("float32", "float", "full", "single", "32", "no"), "fp32"),
    **dict.fromkeys(("adamw_torch", "adamw_hf", "fusedadam"), "adamw"),
    **dict.fromkeys(("host", "ram"), "cpu"),
    **dict.fromkeys(("ssd", "nvme"), "disk"),
}


class Mismatch(ValueError):
    """The error for an invalid value of a key. Its message is appended to the text "KEY =
    VALUE: ".
    """


def build_dataclass(
    kind: type[Any],
    tree: Mapping[str, Any],
    where: str,
    problems: list[str],
    root: type[Any] | None = None,
) -> Any:
    """Build an instance of the dataclass `kind` from the mapping `tree`.

    On an error, add a message to `problems` and return None.

    Args:
        kind: the dataclass of a table, or of the whole job file.
        tree: key -> value, as TOML or JSON has it.
        where: the prefix of the keys in messages: "train." for the table `train`, and "" for the
            whole job file.
        problems: a list to which messages are added.
        root: the dataclass of the whole job file (default: `kind`). The message on an unknown key
            may suggest a key of another table.
    """
    root = root or kind
    hints = hints_of(kind)
    known = {item.name: item for item in keys_of(kind)}
    before = len(problems)
    unknown = [name for name in tree if name not in known]
    problems += [_unknown(name, where, known, root) for name in unknown[:MAX_UNKNOWN]]
    if len(unknown) > MAX_UNKNOWN:
        problems.append(f"{where or 'job'}: {len(unknown) - MAX_UNKNOWN} more unknown keys")
    values: dict[str, Any] = {}
    for name, item in known.items():
        if name in tree:
            values[name] = _field(item, hints[name], tree[name], where, problems, root)
        elif is_dataclass(hints[name]) and is_required(item):
            problems.append(f"{where}{name}: the table [{where}{name}] is missing")
        elif is_required(item):
            problems.append(f"{where}{name}: is missing")
    return kind(**values) if len(problems) == before else None


def dotted_keys(kind: type[Any], prefix: str = "") -> Iterator[tuple[str, tuple[Field[Any], Any]]]:
    """Yield each key of the dataclass `kind` and of its tables.

    An item is the dotted key (such as `train.steps`), its dataclass field, and its type.
    """
    hints = hints_of(kind)
    for item in keys_of(kind):
        hint = hints[item.name]
        if is_dataclass(hint) and isinstance(hint, type):
            yield from dotted_keys(hint, f"{prefix}{item.name}.")
        else:
            yield prefix + item.name, (item, hint)
            if (table := table_of(hint)) is not None:
                yield from dotted_keys(table, f"{prefix}{item.name}.")


def table_of(hint: Any) -> type[Any] | None:
    """Return the dataclass that the type annotation `hint` contains; None if the key with this
    annotation does not take a table.
    """
    return next(
        (each for each in get_args(hint) if isinstance(each, type) and is_dataclass(each)), None
    )


def hints_of(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of a dataclass, keyed by field name.

    Annotations that are strings are evaluated.
    """
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    return _HINTS[kind]


def is_required(item: Field[Any]) -> bool:
    """Return whether a file must set the key of this field, because the field has no default."""
    return item.default is MISSING and item.default_factory is MISSING


def _unknown(name: object, where: str, known: Mapping[str, object], root: type[Any]) -> str:
    close = key_meant(str(name), where, known, dict(dotted_keys(root)))
    hint = f"did you mean {close}?" if close else f"known keys: {', '.join(known)}"
    return f"{where}{format_value(name, bare=True)}: unknown key; {hint}"


def _field(
    item: Field[Any],
    hint: Any,
    value: Any,
    where: str,
    problems: list[str],
    root: type[Any],
) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, Mapping):
            return build_dataclass(hint, value, f"{where}{item.name}.", problems, root)
        problems.append(f"{where}{item.name}: must be a table, not {format_value(value)}")
        return None
    if (table := table_of(hint)) is not None and isinstance(value, Mapping):
        return build_dataclass(table, value, f"{where}{item.name}.", problems, root)
    try:
        result = convert_value(hint, value)
        check_allowed(item, result)
        _check_bounds(item, result)
    except Mismatch as error:
        problems.append(f"{where}{item.name} = {format_value(value)}: {error}")
        return None
    return result


def check_allowed(item: Field[Any], value: Any) -> None:
    """Raise Mismatch if `value`, or any entry of the list `value`, is not an allowed value of
    the key.
    """
    allowed = item.metadata.get("allowed")
    # None is a value of its own if the type has it: older jobs are read with it.
    if allowed is None or value is None:
        return
    is_list = isinstance(value, (list, tuple))
    for each in value if is_list else (value,):
        if each not in allowed:
            close = value_meant(each, allowed)
            hint = f"; did you mean {format_value(close)}?" if close else ""
            choices = ", ".join(format_value(choice) for choice in allowed)
            raise Mismatch(f"{'each ' if is_list else ''}must be one of {choices}{hint}")


def _check_bounds(item: Field[Any], value: Any) -> None:
    minimum, maximum, above = (item.metadata.get(name) for name in ("minimum", "maximum", "above"))
    if value is None or is_dataclass(value):
        return
    if minimum is not None and value < minimum:
        raise Mismatch(f"must be at least {minimum}")
    if maximum is not None and value > maximum:
        raise Mismatch(f"must be at most {maximum}")
    if above is not None and value <= above:
        raise Mismatch(f"must be more than {above}")


def convert_value(hint: Any, value: Any) -> Any:
    """Convert `value` to the annotated type `hint`. Raises Mismatch."""
    origin = get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(get_args(hint), value)
    if origin is tuple:
        return _convert_tuple(get_args(hint)[0], value)
    if origin is not None and issubclass(origin, Mapping):
        return _convert_mapping(get_args(hint)[1], value)
    if hint is Any:
        return plain_json(value)
    if is_dataclass(hint) and isinstance(hint, type):
        return _convert_table(hint, value)
    return _convert_scalar(hint, value)


def _convert_table(kind: type[Any], value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise Mismatch("must be a table")
    problems: list[str] = []
    result = build_dataclass(kind, value, "", problems)
    if problems:
        raise Mismatch("; ".join(problems))
    return result


def _convert_union(members: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in members:
        return None
    members = tuple(member for member in members if member is not type(None))
    if len(members) == 1:
        return convert_value(members[0], value)
    for member in members:
        if _same_shape(member, value):
            return convert_value(member, value)
    raise Mismatch(f"must be {' or '.join(_describe(member) for member in members)}")


def _same_shape(member: Any, value: Any) -> bool:
    origin = get_origin(member)
    if origin is tuple:
        return isinstance(value, (list, tuple))
    if origin is not None or is_dataclass(member):
        return isinstance(value, Mapping)
    return isinstance(value, member) and not isinstance(value, bool)


def _describe(member: Any) -> str:
    origin = get_origin(member)
    if origin is tuple:
        return "a list"
    return "a table" if origin is not None or is_dataclass(member) else _NAMES[member]


def _convert_tuple(member: Any, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise Mismatch("must be a list")
    if member is str and are_texts(value):
        return tuple(value)
    result = []
    for index, entry in enumerate(value):
        try:
            result.append(convert_value(member, entry))
        except Mismatch as error:
            raise Mismatch(f"entry {index} ({format_value(entry)}) {error}") from None
    return tuple(result)


def _convert_mapping(member: Any, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise Mismatch("must be a table")
    if member is str and are_texts(value) and are_texts(value.values()):
        return dict(value)
    result = {}
    for name, entry in value.items():
        try:
            result[_convert_scalar(str, name)] = convert_value(member, entry)
        except Mismatch as error:
            raise Mismatch(f"its key {format_value(name, bare=True)} {error}") from None
    return result


def _convert_scalar(hint: type[Any], value: Any) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) <= MAX_INT else math.inf
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise Mismatch(f"must be {_NAMES[hint]}")
    if isinstance(value, float) and not math.isfinite(value):
        raise Mismatch("must be a finite number")
    if isinstance(value, int) and abs(value) > MAX_INT:
        raise Mismatch("must fit in 64 bits")
    if isinstance(value, str):
        _check_text(value)
    return value


def _check_text(value: str) -> None:
    if "\0" in value:
        raise Mismatch("must not contain a NUL character")
    try:
        # A file name that is not UTF-8 is stored, and read again; see also `parse`.
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Mismatch("must be valid Unicode text") from None


def are_texts(values: Iterable[object], errors: str = "surrogateescape") -> bool:
    """Return whether all of `values` are valid strings.

    The strings are checked in one step, because a command may have 100,000 words.
    """
    if not set(map(type, values)) <= {str}:
        return False
    together = "".join(cast("Iterable[str]", values))
    try:
        return "\0" not in together and bool(together.encode("utf-8", errors) or True)
    except UnicodeEncodeError:
        return False


def plain_json(value: Any, depth: int = 0) -> Any:
    """Return a copy of `value` with only the types of JSON. Raises Mismatch for dates, NaN, and
    trees that are too deep."""
    if depth > MAX_DEPTH:
        raise Mismatch(f"must not be nested deeper than {MAX_DEPTH} levels")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (str, int, float)):
        return _convert_scalar(type(value), value)
    if isinstance(value, (list, tuple)):
        if depth < MAX_DEPTH and are_texts(value):
            return list(value)
        return [plain_json(entry, depth + 1) for entry in value]
    if is_dataclass(value) and not isinstance(value, type):
        value = {item.name: getattr(value, item.name) for item in keys_of(value)}
    if isinstance(value, Mapping):
        if depth < MAX_DEPTH and are_texts(value) and are_texts(value.values()):
            return dict(value)
        return {_convert_scalar(str, k): plain_json(v, depth + 1) for k, v in value.items()}
    raise Mismatch(f"must not contain a {type(value).__name__}")


def format_value(value: object, *, bare: bool = False) -> str:
    """Return `value` as a user would write it in the file, cut to 80 characters.

    With `bare`, a string has no quotes.
    """
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, str):
        printable = value.encode("unicode_escape").decode() if not value.isprintable() else value
        text = printable if bare else f'"{printable}"'
    elif isinstance(value, int) and value.bit_length() > 256:
        text = f"a number of {value.bit_length()} bits"
    elif isinstance(value, Mapping):
        text = "a table"
    elif isinstance(value, (list, tuple)):
        inner = ", ".join(format_value(entry) for entry in value[:8])
        text = f"[{inner}{', ...' if len(value) > 8 else ''}]"
    else:
        text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def key_meant(name: str, where: str, known: Iterable[str], all_keys: Iterable[str]) -> str | None:
    """Return the dotted key that the user probably meant by the unknown key `name`; None if no key
    is similar.

    `where` is the prefix of the table that contains `name`, such as "train." ("" for the whole job
    file). The keys are compared in this order:

    1. the key with the same meaning as the key `name` of another program
    2. the only key with the same name in another table
    3. the most similar key of the table
    4. the most similar of all keys
    """
    dotted = list(all_keys)
    synonym = KEYS.get(name.lower(), "")
    if synonym and synonym.replace(",", " ").split()[0] in dotted:
        return synonym
    elsewhere = [key for key in dotted if key.rpartition(".")[2] == name]
    if len(elsewhere) == 1:
        return elsewhere[0]
    close = difflib.get_close_matches(name[:64], list(known), n=1)
    if close:
        return where + close[0]
    by_name = {key.rpartition(".")[2]: key for key in reversed(dotted)}
    close = difflib.get_close_matches(name[:64], by_name, n=1, cutoff=0.8)
    return by_name[close[0]] if close else None


def value_meant(value: object, allowed: Iterable[object]) -> str | None:
    """Return the allowed value that the user probably meant by `value`; None if no allowed value is
    similar.
    """
    choices = [str(choice) for choice in allowed]
    text = str(value).lower()[:64]
    if VALUES.get(text) in choices:
        return VALUES[text]
    if text in choices:
        return text
    close = difflib.get_close_matches(text, choices, n=1)
    return close[0] if close else None
