"""Whether what was brought together is a whole checkpoint, as `zerotools verify` looks at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.formats.detect import complete_but_for_its_name
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.verification.findings import Finding, Soundness, Verification
from zerotools.ops.verification.verify import ToVerify, prepare, verify

Progress = Callable[[int], None]


@dataclass(frozen=True)
class StagedCheck:
    """The checkpoints that were found, or in one sentence why there is none."""

    directory: Path
    verifications: tuple[Verification, ...] = ()
    error: str | None = None

    @property
    def is_whole(self) -> bool:
        """Nothing is wrong, as far as was looked."""
        faulty = (each.verdict is Soundness.FAULTY for each in self.verifications)
        return self.error is None and not any(faulty)

    @property
    def findings(self) -> list[str]:
        """What is wrong, in sentences."""
        said = [finding.message for each in self.verifications for finding in each.findings]
        return [*([self.error] if self.error else []), *said]

    @property
    def missing(self) -> list[str]:
        """Files that the checkpoints lack, relative to the directory."""
        found = [(each, finding) for each in self.verifications for finding in each.findings]
        names = (self._missing(each, finding) for each, finding in found)
        return list(dict.fromkeys(name for name in names if name is not None))

    def _missing(self, found: Verification, finding: Finding) -> str | None:
        if finding.file is None:
            return None
        paths = [base / finding.file for base in (found.checkpoint.root, found.files.base)]
        if any(path.exists() for path in paths) or not paths[0].is_relative_to(self.directory):
            return None
        return paths[0].relative_to(self.directory).as_posix()


def look(directory: Path) -> tuple[list[ToVerify], str | None]:
    """The checkpoints in the staging directory, one for each tag, and why there are none.

    What is wrong is returned and not raised: it does not end what was fetched.
    """
    with complete_but_for_its_name(directory):
        try:
            first = prepare(directory)
            others = [prepare(directory, tag=tag) for tag in first.checkpoint.origin.other_tags]
        except (BadFile, BadRequest, Unsupported) as error:
            return [], str(error)
    return [first, *others], None


def check(
    directory: Path,
    found: list[ToVerify],
    error: str | None,
    *,
    fast: bool,
    budget: MemoryBudget,
    on_bytes: Progress = lambda _: None,
) -> StagedCheck:
    """Verify what `look` has found; with `fast` no tensor data is read."""
    made = tuple(verify(each, fast=fast, budget=budget, on_bytes=on_bytes) for each in found)
    return StagedCheck(directory, made, error)
