"""What the loaders of DeepSpeed, torch and transformers make of a checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tempfile
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any


def said_by_peer(kind: str, path: Path) -> object:
    """A digest of each tensor by name, or None where the loader refuses."""
    loaders = {"dcp": _dcp, "safetensors": _safetensors, "universal": _files, "legacy": _files}
    silence = (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    )
    with silence[0], silence[1], silence[2]:
        warnings.simplefilter("ignore")
        try:
            return dict(_digests(loaders.get(kind, _zero_to_fp32)(path)))
        except KeyboardInterrupt:
            raise
        except BaseException:  # as torch's CheckpointException
            return None


def _zero_to_fp32(path: Path) -> Any:
    module = import_module("deepspeed.utils.zero_to_fp32")
    (tag,) = [entry for entry in path.iterdir() if entry.is_dir()]
    return module.get_fp32_state_dict_from_zero_checkpoint(str(path), tag.name)


def _dcp(path: Path) -> Any:
    torch = import_module("torch")
    utils = import_module("torch.distributed.checkpoint.format_utils")
    with tempfile.TemporaryDirectory() as temporary:
        out = f"{temporary}/out.pt"
        utils.dcp_to_torch_save(str(path), out)
        return torch.load(out, weights_only=False)


def _safetensors(path: Path) -> Any:
    load = import_module("transformers.modeling_utils").load_state_dict
    index = path / "model.safetensors.index.json"
    names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    return {name: load(str(path / name)) for name in names}


def _files(path: Path) -> Any:
    torch = import_module("torch")
    return {
        file.relative_to(path).as_posix(): torch.load(file, weights_only=False)
        for file in sorted(path.rglob("*.pt"))
    }


def _digests(tree: Any, name: str = "") -> Iterator[tuple[str, str]]:
    torch = import_module("torch")
    if isinstance(tree, torch.Tensor):
        raw = tree.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        yield name, f"{tree.dtype} {tuple(tree.shape)} {hashlib.sha256(raw).hexdigest()}"
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from _digests(value, f"{name}/{key}")
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from _digests(value, f"{name}/{number}")
    else:
        yield name, repr(tree) if isinstance(tree, int | float | str | bool) else ""
