"""The bytes of files of a source, one after another over one connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

from zerotools.core.errors import BadFile, ZerotoolsError
from zerotools.io.ssh.far_shell import BLOCK, SILENT_SECONDS, FarShell, OpenShells
from zerotools.ops.gathering.far_listing import FarFile, list_source
from zerotools.ops.gathering.far_scripts import contents
from zerotools.ops.gathering.node_source import NodeSource


@dataclass(frozen=True, slots=True)
class Wanted:
    """A listed file with its first `blocks` received already."""

    name: str
    file: FarFile
    blocks: int = 0

    @property
    def skipped(self) -> int:
        """Bytes that are not sent."""
        return self.blocks * BLOCK


class FarContents:
    """The bytes of files that a node sends, in order. Use as a context manager."""

    def __init__(
        self,
        source: NodeSource,
        wanted: Sequence[Wanted],
        shells: OpenShells,
        *,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._source = source
        self._left = iter(wanted)
        self._shells = shells
        asked = [(each.name, each.blocks, each.file.size - each.skipped) for each in wanted]
        self._shell = FarShell(
            source.host,
            lambda mark: contents(source.directory, asked, mark),
            shells,
            silent_seconds=silent_seconds,
        )

    def __enter__(self) -> FarContents:
        self._shell.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shell.__exit__(kind, error, trace)

    def next(self, take: Callable[[bytes], None]) -> None:
        """Give the bytes of the next file to `take`, without those that exist already.

        Raises:
            BadFile: it changed since it was listed, or cannot be read there.
            HostUnreachable: see `FarShell`.
        """
        wanted = next(self._left)
        count = wanted.file.size - wanted.skipped
        if self._shell.pass_on(count, take) == count and self._shell.line() == self._mark:
            return
        said = self._shell.said()
        self._shell.kill()
        refuse_changed(self._source, {wanted.name: wanted.file}, self._shells)
        raise BadFile(
            f"{self._source.name}: {wanted.name} should send {count} bytes, but sent others: "
            f"{said or 'the connection ended'}; run the same command again to continue"
        )

    @property
    def _mark(self) -> bytes:
        return self._shell.mark.encode()


def refuse_changed(source: NodeSource, files: dict[str, FarFile], shells: OpenShells) -> None:
    """Raise an error if the `files` of a source have changed.

    Raises:
        BadFile: names the first of them, and the difference.
        ZerotoolsError: it cannot be listed any more.
    """
    try:
        now = list_source(source, shells).files
    except ZerotoolsError as error:
        raise type(error)(f"{error!s}; it could be read before") from None
    for name, before in files.items():
        after = now.get(name)
        if after == before:
            continue
        if after is None:
            how = "it is gone"
        elif after.size != before.size:
            how = f"it had {before.size} bytes and has {after.size}"
        else:
            how = "it was written again, with the same size"
        raise BadFile(
            f"{source.name}: {name} changed while it was gathered: {how}; wait until no program "
            "writes there, and run the same command again"
        )
