"""The member `run` of toy.json, and the numbers of the optimizer beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tests.formats.toy.file_names import METADATA
from tests.formats.toy.json_fields import JsonFields
from tests.formats.toy.plain_values import NotPlain, decode, encode
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import Unsupported
from zerotools.core.target import Dropped
from zerotools.core.training_state import LossScale, ParamGroup, Scalar, TrainingState

_T = TypeVar("_T")


def training_of(checkpoint: Checkpoint) -> TrainingState:
    """What `checkpoint.state` says of the run.

    Raises:
        BadFile: toy.json contradicts itself.
    """
    document = JsonFields(checkpoint.root / METADATA, "the file", checkpoint.state)
    run = document.table("run")
    unnamed = run.table("unnamed")
    return TrainingState(
        groups=tuple(
            ParamGroup(group.texts("params"), _tree(group, "options", dict))
            for group in run.tables("groups")
        ),
        scalars={
            Key(entry.text("name"), entry.text("role")): Scalar(
                entry.number("value"), _optional(entry, "dtype", entry.dtype)
            )
            for entry in document.tables("scalars")
        },
        frozen=frozenset(run.texts("frozen")),
        precision=_optional(run, "precision", run.dtype),
        optimizer=_optional(run, "optimizer", run.text),
        optimizer_wrapper=_optional(run, "optimizer_wrapper", run.text),
        steps=_optional(run, "steps", run.count),
        skipped=_optional(run, "skipped", run.count),
        samples=_optional(run, "samples", run.count),
        lr_scheduler=_tree(run, "lr_scheduler"),
        loss_scaler=_optional(run, "loss_scaler", lambda key: _loss_scaler(run.table(key))),
        ds_config=_optional(run, "ds_config", lambda key: _tree(run, key, dict)),
        client=_tree(run, "client", dict),
        is_ordered=run.flag("is_ordered"),
        unnamed={name: unnamed.count(name) for name in unnamed.values},
        buffers=frozenset(run.texts("buffers")),
        knows_frozen=run.flag("knows_frozen"),
    )


def _optional(fields: JsonFields, key: str, read: Callable[[str], _T]) -> _T | None:
    return read(key) if fields.has(key) else None


def _loss_scaler(fields: JsonFields) -> LossScale:
    options, saved_as = _tree(fields, "options", dict), _optional(fields, "saved_as", fields.text)
    return LossScale(fields.number("scale"), fields.flag("dynamic"), options, saved_as)


def _tree(fields: JsonFields, key: str, kind: type = object) -> Any:
    try:
        value = decode(fields.values.get(key))
    except (ValueError, Unsupported) as error:
        raise fields.wrong(f"has in {key!r} {error}") from None
    if not isinstance(value, kind):
        raise fields.wrong(f"has no {kind.__name__} {key!r}")
    return value


def state_of(training: TrainingState) -> tuple[dict[str, Any], tuple[Dropped, ...]]:
    """The members `scalars` and `run` of toy.json, and what has no place there.

    Raises:
        Unsupported: an option of a param group or of the scaler is an object of a class.
    """
    client, lost = _plain_entries(training.client)
    schedule, objects = _plain_entries({"lr_scheduler": training.lr_scheduler})
    config, others = _plain_entries({"ds_config": training.ds_config})
    scaler = training.loss_scaler
    run = {
        "groups": [
            {"params": group.params, "options": _all_plain(group.options, "param group")}
            for group in training.groups
        ],
        "frozen": sorted(training.frozen),
        "precision": training.precision and training.precision.name,
        "optimizer": training.optimizer,
        "optimizer_wrapper": training.optimizer_wrapper,
        "steps": training.steps,
        "skipped": training.skipped,
        "samples": training.samples,
        **schedule,
        "loss_scaler": scaler
        and {
            "scale": scaler.scale,
            "dynamic": scaler.dynamic,
            "options": _all_plain(scaler.options, "loss scaler"),
            "saved_as": scaler.saved_as,
        },
        **config,
        "client": encode({name: training.client[name] for name in client}),
        "is_ordered": training.is_ordered,
        "unnamed": dict(training.unnamed),
        "buffers": sorted(training.buffers),
        "knows_frozen": training.knows_frozen,
    }
    scalars = [
        {**key._asdict(), "value": scalar.value, "dtype": scalar.dtype and scalar.dtype.name}
        for key, scalar in training.scalars.items()
    ]
    why = "toy.json holds plain values, and not {}"
    dropped = (("client", lost), ("lr_scheduler", objects), ("ds_config", others))
    return {"scalars": scalars, "run": run}, tuple(
        Dropped(what, why.format(", ".join(names))) for what, names in dropped if names
    )


def _plain_entries(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Those that JSON can hold, as JSON, and what to say of the others."""
    plain, others = {}, []
    for name, value in values.items():
        try:
            plain[name] = encode(value)
        except NotPlain as error:
            others.append(f"{name}, which is {error}")
    return plain, others


def _all_plain(options: Mapping[str, Any], whose: str) -> Any:
    try:
        return encode(options)
    except NotPlain as error:
        raise Unsupported(f"toy cannot hold an option of a {whose} that is {error}") from None
