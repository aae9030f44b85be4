"""Files beside the weights that lie: markers, records, manifests, configs of adapters."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.formats.safetensors.files import entry, file_bytes
from tests.hostile.case import ADAPTER, READ, VERIFY, Case, Make
from tests.hostile.safetensors_cases import FILLS, MANY_LISTS, MODEL, SOUND
from zerotools.io.output.output_marker import MARKER, tree_digest
from zerotools.runs.thinning_record import THINNED

HALF = "base_model.model.w.lora_{}.weight"
HALVES = {
    HALF.format("A"): entry("F32", [1, 2], 0, 8),
    HALF.format("B"): entry("F32", [2, 1], 8, 16),
}


def beside(name: str, make: bytes | Callable[[Path], object]) -> Make:
    """A sound model, and something of that name."""

    def made(directory: Path) -> Path:
        (directory / MODEL).write_bytes(SOUND)
        _put(directory / name, make)
        return directory

    return made


def adapter(config: Any) -> Make:
    """An adapter of one weight, whose configuration is that."""

    def made(directory: Path) -> Path:
        (directory / "adapter_model.safetensors").write_bytes(file_bytes(HALVES, bytes(16)))
        text = config if isinstance(config, bytes) else json.dumps(config).encode()
        _put(directory / "adapter_config.json", text)
        return directory

    return made


def _put(path: Path, make: bytes | Callable[[Path], object]) -> None:
    if callable(make):
        make(path)
    else:
        path.write_bytes(make)


def marker(**files: Any) -> bytes:
    """A marker with a right digest of its own."""
    tree: dict[str, Any] = {"schema": "zerotools.output/1", "command": "consolidate"}
    tree |= {"version": "9", "files": files, "algorithm": "xxh3-128/2^20"}
    return json.dumps({**tree, "digest": tree_digest(tree)}).encode()


def manifest(tree: Any) -> Make:
    """A model whose sidecar is that, in JSON, with a right digest of its own."""

    def made(directory: Path) -> Path:
        path = directory / "m"
        path.mkdir()
        (path / MODEL).write_bytes(SOUND)
        text = json.dumps({**tree, "digest": tree_digest(tree)})
        (directory / "m.zerotools.json").write_text(text)
        return path

    return made


def job_manifest(files: Any) -> Make:
    """A checkpoint of a job whose manifest lists `files`."""

    def made(directory: Path) -> Path:
        path = directory / "step-00000001"
        path.mkdir()
        (path / MODEL).write_bytes(SOUND)
        tree = {"schema": "zerotools.manifest/1", "files": files}
        (path / "MANIFEST.json").write_text(json.dumps(tree))
        return path

    return made


LORA = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["w"]}

NO_MARKER = "is not a marker that zerotools wrote"
NO_MANIFEST = "it has no schema zerotools.manifest/1"
OTHER_RANK = r"has rank 1, but adapter_config.json has"
NOT_THERE = {"size": 1, "mtime_ns": 1, "digest": "0"}
ELSEWHERE = marker(**{"../../etc/passwd": NOT_THERE})
NEVER = b'{"schema": "zerotools.thinned/1", "dropped": [], "keep": "x", "time": 1e999}'
PIPE = r"is a named pipe \(FIFO\)"

CASES = (
    Case("a marker of a million lists", beside(MARKER, MANY_LISTS), FILLS, VERIFY, 1),
    Case("a pipe for a marker", beside(MARKER, os.mkfifo), PIPE, VERIFY, 1),
    Case("a marker of files above", beside(MARKER, ELSEWHERE), "digests of files", VERIFY, 1),
    Case(
        "a marker whose sizes are text",
        beside(MARKER, marker(**{MODEL: {"size": "x", "digest": 1}})),
        NO_MARKER,
        VERIFY,
        1,
    ),
    Case("half a marker", beside(MARKER, marker()[:-1]), "cannot be read: Expecting", VERIFY, 1),
    Case(
        "a thinned record of a million lists",
        beside(THINNED, MANY_LISTS),
        "a file of its kind may have at most",
        ("inspect", "salvage", "diff"),
    ),
    Case(
        "a pipe for a thinned record",
        beside(THINNED, os.mkfifo),
        PIPE,
        ("inspect", "verify", "salvage"),
    ),
    Case(
        "a checkpoint thinned at no time",
        beside(THINNED, NEVER),
        "not a record of the schema",
        READ,
    ),
    Case(
        "a salvage record that is a pipe",
        beside("zerotools-salvage.json", os.mkfifo),
        "bytes cannot be checked",
        ("verify", "salvage"),
        0,
    ),
    Case("an adapter's config of a million lists", adapter(MANY_LISTS), FILLS, ADAPTER),
    Case("an adapter's config that is a list", adapter([1]), "it has no peft_type", ADAPTER),
    Case("an adapter of rank 2 ** 70", adapter({**LORA, "r": 2**70}), OTHER_RANK, ADAPTER, 2),
    Case("an adapter of rank -1", adapter({**LORA, "r": -1}), OTHER_RANK, ADAPTER, 2),
    Case(
        "an adapter whose base is another file",
        adapter({**LORA, "base_model_name_or_path": "/etc/passwd"}),
        "wrote .*: 2 tensors, .* in 2 files",
        ADAPTER,
        0,
    ),
    Case("a manifest without tensors", manifest({"schema": "x"}), NO_MANIFEST, VERIFY, 1),
    Case(
        "a manifest of no algorithm",
        manifest({"schema": "zerotools.manifest/1", "files": {"../x": {}}}),
        "digests of the algorithm None",
        VERIFY,
        1,
    ),
    Case(
        "a job's manifest of files above",
        job_manifest({"../../x": {"size": 1, "sha256": "0"}}),
        "is not a manifest of version 1",
        VERIFY,
        1,
    ),
    Case(
        "a job's manifest that is a list",
        job_manifest([]),
        "is not a manifest of version",
        VERIFY,
        1,
    ),
)
