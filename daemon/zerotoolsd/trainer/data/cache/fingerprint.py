"""One digest of all inputs of tokenised data: content, tokenizer, settings and versions."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

FORM = 4
"""Of the files that are written, and of how examples are read: another one is another entry."""
LIBRARIES = ("tokenizers", "transformers", "jinja2")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx")
_SETTLED_SECONDS = 2.0
"""A file that was changed since may change again without another time."""


def fingerprint(paths: Sequence[Path], tokenizer: Path | None, settings: Any, stamps: Path) -> str:
    """Return the digest of the data in `paths`, the tokenizer's directory and plain `settings`.

    The directory `stamps` caches the digests of files.
    """
    content = [(path.suffix.lower(), content_of(path, stamps)) for path in paths]
    of_tokenizer = [] if tokenizer is None else tokenizer_digests(tokenizer)
    versions = [_version(name) for name in LIBRARIES]
    tree = [FORM, content, of_tokenizer, settings, versions]
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def tokenizer_digests(directory: Path) -> list[tuple[str, str]]:
    """Return the name and digest of each file that may belong to a tokenizer."""
    files = sorted(
        path
        for path in (*directory.iterdir(), *directory.glob("*templates/*"))
        if path.is_file() and path.suffix.lower() not in _WEIGHTS
    )
    return [(str(path.relative_to(directory)), digest(path)) for path in files]


def content_of(path: Path, stamps: Path) -> str:
    """Return the digest of a file; it is not read again while file and times are unchanged."""
    status = path.stat()
    stamp = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    note = stamps / hashlib.sha256(str(path.absolute()).encode("utf-8", "replace")).hexdigest()
    with suppress(OSError, ValueError, LookupError, TypeError):
        noted = json.loads(note.read_bytes())
        if noted["stamp"] == stamp and isinstance(noted["digest"], str):
            return str(noted["digest"])
    found = digest(path)
    if time.time() - max(status.st_mtime, status.st_ctime) > _SETTLED_SECONDS:
        with suppress(OSError):
            stamps.mkdir(parents=True, exist_ok=True)
            draft = note.with_name(f"{note.name}.{time.monotonic_ns()}")
            draft.write_text(json.dumps({"stamp": stamp, "digest": found}))
            draft.replace(note)
    return found


def digest(path: Path) -> str:
    """Return SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
