"""Repositories of the Hub on loopback, with commits, branches, tags, and large and small files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

LARGE = (".safetensors", ".bin", ".pt", ".ckpt", ".npz", ".onnx")
"""Files with these suffixes are in the Hub's storage for large files, even if they are small."""
LARGE_BYTES = 10 << 20
_POINTER_BYTES = 134


@dataclass(frozen=True)
class HubFile:
    """A file in a commit."""

    path: str
    data: bytes

    @property
    def is_large(self) -> bool:
        """True if the file is in the storage for large files, to which the Hub redirects."""
        return self.path.endswith(LARGE) or len(self.data) >= LARGE_BYTES

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the file. It is the ETag of a large file."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def oid(self) -> str:
        """The id of the file's blob in git. It is the ETag of a small file.

        The blob of a large file is its LFS pointer.
        """
        data = f"oid sha256:{self.sha256}\n".encode() if self.is_large else self.data
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()

    @property
    def etag(self) -> str:
        """The ETag of the file, with quotes."""
        return f'"{self.sha256 if self.is_large else self.oid}"'

    def in_tree(self) -> dict[str, Any]:
        """Return the file's entry in a listing of a tree."""
        entry = {"type": "file", "oid": self.oid, "size": len(self.data), "path": self.path}
        return {**entry, "lfs": self._lfs("oid")} if self.is_large else entry

    def sibling(self, blobs: bool) -> dict[str, Any]:
        """Return the file's entry in the info of a repository. With `blobs`, the entry has the
        size, too.
        """
        if not blobs:
            return {"rfilename": self.path}
        entry = {"rfilename": self.path, "size": len(self.data), "blobId": self.oid}
        return {**entry, "lfs": self._lfs("sha256")} if self.is_large else entry

    def _lfs(self, name: str) -> dict[str, Any]:
        return {name: self.sha256, "size": len(self.data), "pointerSize": _POINTER_BYTES}


@dataclass
class HubRepo:
    """A repository `owner/name`. Its `kind` is model, dataset or space.

    If it is `private`, only tokens that may read it can see it. If it is `gated`, all clients can
    see it, but only tokens that may read it can get its files.
    """

    name: str
    kind: str = "model"
    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, HubFile]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Add a commit with exactly these files to the branch, and return its hash."""
        text = f"{self.name} {len(self.commits)} {sorted(files)}"
        sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.commits[sha] = {path: HubFile(path, files[path]) for path in sorted(files)}
        self.branches[branch] = sha
        return sha

    def sha_of(self, revision: str) -> str | None:
        """Return the hash of the commit that `revision` names: a branch, a tag or a hash.

        Returns None if no such commit exists.
        """
        short = revision.removeprefix("refs/heads/").removeprefix("refs/tags/")
        found = self.branches.get(short) or self.tags.get(short)
        return found or (revision if revision in self.commits else None)

    def tree(self, sha: str, below: str, recursive: bool) -> list[dict[str, Any]] | None:
        """Return the entries of the directory `below`, folders before their content.

        Returns None if the directory does not exist.
        """
        start = f"{below}/" if below else ""
        entries: dict[str, dict[str, Any]] = {}
        for path, file in self.commits[sha].items():
            if not path.startswith(start):
                continue
            *folders, _ = path[len(start) :].split("/")
            for depth in range(1, len(folders) + 1 if recursive else min(2, len(folders) + 1)):
                name = start + "/".join(folders[:depth])
                entries[name] = folder_entry(name)
            if recursive or not folders:
                entries[path] = file.in_tree()
        return [entries[path] for path in sorted(entries)] if entries or not below else None


def folder_entry(path: str) -> dict[str, Any]:
    """Return the entry of a folder in a listing."""
    oid = hashlib.sha1(path.encode(), usedforsecurity=False).hexdigest()
    return {"type": "directory", "oid": oid, "size": 0, "path": path}
