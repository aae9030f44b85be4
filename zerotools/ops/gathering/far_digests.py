"""SHA-256 of files of a source: made by its node, or else from the bytes that it sends."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence

from zerotools.core.errors import BadFile
from zerotools.io.ssh.far_shell import FarShell, OpenShells
from zerotools.ops.gathering.far_contents import FarContents, Wanted
from zerotools.ops.gathering.far_listing import Listing
from zerotools.ops.gathering.far_scripts import digests
from zerotools.ops.gathering.node_source import NodeSource

_DIGEST = re.compile(rb"\\?([0-9a-f]{64})")
Each = Callable[[str, str], None]
"""A callback that gets a name and its digest, in hexadecimal."""


def make_digests(listing: Listing, names: Sequence[str], shells: OpenShells, each: Each) -> None:
    """Pass the digests of the files `names`, in this order, to `each`.

    Raises:
        BadFile: a file cannot be read there, or differs from the listing.
        HostUnreachable: see `FarShell`.
    """
    if listing.makes_digests:
        _made_there(listing.source, names, shells, each)
        return
    wanted = [Wanted(name, listing.files[name]) for name in names]
    with FarContents(listing.source, wanted, shells) as sent:
        for file in wanted:
            digest = hashlib.sha256()
            sent.next(digest.update)
            each(file.name, digest.hexdigest())


def _made_there(source: NodeSource, names: Sequence[str], shells: OpenShells, each: Each) -> None:
    with FarShell(source.host, lambda _: digests(source.directory, names), shells) as shell:
        for name in names:
            match = _DIGEST.fullmatch(shell.line() or b"")
            if match is None:
                raise BadFile(
                    f"{source.name}: {name} cannot be read there: "
                    f"{shell.said() or 'sha256sum failed'}; see who may read it"
                )
            each(name, match[1].decode())
