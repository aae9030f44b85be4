"""Configs of other launchers, of the daemon, and rules for tensor-parallel shards, by the first
byte: values come out that another parser finds too, or a sentence."""

from __future__ import annotations

import copy
import json
import math
import struct
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzzing import scratch
from zerotools.core.errors import BadFile, BadRequest, Unsupported, ZerotoolsError
from zerotools.formats.deepspeed.schema.ds_config import read_config
from zerotools.formats.deepspeed.schema.read_tensor_sharding_rules import read_layout
from zerotools.jobs.imports.combine_configs import JobFile, import_configs
from zerotools.jobs.imports.reading.import_report import report_lines
from zerotools.jobs.imports.reading.look_up_job_keys import set_key
from zerotools.jobs.jobfile.parse import parse_job
from zerotools.jobs.launcher_keys.deepspeed_keys import KEYS, SECTIONS
from zerotools.jobs.text.config_document import Document
from zerotools.jobs.text.json_parser import parse_json
from zerotools.jobs.text.toml_writer import to_toml
from zerotools.jobs.text.yaml_parser import parse_yaml
from zerotoolsd.config.daemon_config import load_config

BASIS = {"model": {"path": "/m"}, "data": {"text": ["/t"]}, "train": {"steps": 9, "batch_size": 4}}
OF_DEEPSPEED = {**BASIS, "train": {"steps": 9}, "engine": "deepspeed"}
"""A job that leaves all that it can to DeepSpeed's own configuration."""
MOST_KEYS = 12
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, 3, 4, 8, -1, 0.5, 1e-4, 1e9, 2**63, 1e308, "", "auto", "cpu",
    "nvme", "none", "fp16", "bf16", "fp32", "AdamW", "Adam", "Lamb", "WarmupLR", "WarmupDecayLR",
    "/tmp", [], [0.9, 0.99], {}, {"enabled": True}, {"device": "cpu"}, {"stage": 2}, "1", "true",
    [1], "1e8",
)  # fmt: skip
SHARDS = ((4, 2), (4, 2))
_NAMES = sorted((*KEYS, *SECTIONS))


def check(data: bytes) -> None:
    """`data` is one byte that chooses, and the text of the file, or numbers that make one."""
    if data:
        _READERS[data[0] % len(_READERS)](data[1:])


def _deepspeed(data: bytes) -> None:
    _imported(data, lambda text: parse_json(text, source="c"), "deepspeed")


def _deepspeed_lenient(data: bytes) -> None:
    _imported(data, lambda text: parse_json(text, source="c", lenient=True), "deepspeed")


def _deepspeed_keys(data: bytes) -> None:
    """Pairs of a key and a value by their numbers, so that whole configurations come out."""
    tree: dict[str, Any] = {"train_batch_size": 4}
    for key, value in list(struct.iter_unpack("<BB", data[: len(data) // 2 * 2]))[:MOST_KEYS]:
        set_key(tree, _NAMES[key % len(_NAMES)], copy.deepcopy(VALUES[value % len(VALUES)]))
    _deepspeed(json.dumps(tree).encode())


def _accelerate(data: bytes) -> None:
    _imported(data, lambda text: parse_yaml(text, source="c"), "accelerate")


def _accelerate_lenient(data: bytes) -> None:
    _imported(data, lambda text: parse_yaml(text, source="c", lenient=True), "accelerate")


def _imported(data: bytes, parse: Callable[[str], Document], which: str) -> None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    try:
        document = parse(text)
    except ZerotoolsError as error:
        assert isinstance(error, BadRequest | Unsupported), repr(error)
        assert str(error).startswith("c:"), str(error)
        return
    if document.mended is None:
        _compare(document.tree, text, which)
    given = JobFile(json.loads(json.dumps(BASIS)), "job.toml", Path("/b"))
    empty = parse_json("{}", source="empty")
    documents: dict[str, Any] = {which: document}
    try:
        result = import_configs(given, **documents, load=lambda _: empty)
    except ZerotoolsError as error:
        assert isinstance(error, BadRequest), repr(error)
        return
    assert all(
        line.startswith("#") and line.isprintable() for line in report_lines(result.findings)
    )
    json.dumps(result.findings.to_json())
    if scratch.PEERS and which == "deepspeed" and document.mended is None:
        from tests.fuzzing.peers import deepspeed_config

        alone = JobFile(json.loads(json.dumps(OF_DEEPSPEED)), "job.toml", Path("/b"))
        deepspeed_config.compare(document.tree, import_configs(alone, deepspeed=document))
    if result.problem is None:
        written = to_toml(result.tree, result.origins)
        assert parse_job(written, source="job.toml", base_dir=Path("/b")) == result.spec


def _compare(tree: Any, text: str, which: str) -> None:
    """The values are those that the usual parser finds. YAML's differs in words such as `1_0`, and
    takes what ours refuses: tags, anchors, keys that stand twice."""
    if which == "deepspeed":
        assert _same(tree, json.loads(text)), tree


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dict):
        return (
            isinstance(theirs, dict)
            and ours.keys() == theirs.keys()
            and all(_same(value, theirs[key]) for key, value in ours.items())
        )
    if isinstance(ours, list):
        return (
            isinstance(theirs, list) and len(ours) == len(theirs) and all(map(_same, ours, theirs))
        )
    if isinstance(ours, float) and math.isnan(ours):
        return isinstance(theirs, float) and math.isnan(theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)


def _of_daemon(data: bytes) -> None:
    path = _written(data)
    try:
        load_config(path)
    except BadRequest as error:
        assert str(error).startswith(str(path))


def _rules(data: bytes) -> None:
    path = _written(data)
    try:
        read_layout(path).rule_of("model.layers.0.mlp.weight", SHARDS)
    except (BadRequest, BadFile, Unsupported):
        return
    tomllib.loads(data.decode())


def _ds_config(data: bytes) -> None:
    path = _written(data)
    try:
        assert isinstance(read_config(path), dict)
    except BadRequest as error:
        assert str(path) in str(error)


def _written(data: bytes) -> Path:
    path = scratch.scratch("config") / "config"
    path.write_bytes(data)
    return path


_READERS = (
    _deepspeed,
    _deepspeed_lenient,
    _accelerate,
    _accelerate_lenient,
    _of_daemon,
    _rules,
    _ds_config,
    _deepspeed_keys,
)
