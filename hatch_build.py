"""What is computed when zerotools is built: its version, its pages and units, and links of README.

pyproject.toml names what hatchling takes from here. Nothing of this is installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).resolve().parent
VERSION_FILE = "zerotools/version.py"
_NOT_BUILT = 'BUILT = ""\n'
PACKAGED = {
    "docs/explanation": "zerotools/pages/explanation",
    "docs/how-to": "zerotools/pages/how-to",
    "docs/reference": "zerotools/pages/reference",
    "docs/tutorial": "zerotools/pages/tutorial",
    "docs/zh": "zerotools/pages/zh",
    "systemd": "zerotoolsd/units",
    "daemon/earlier_names": "zerotoolsd",
}
"""What a wheel has of the repository outside the packages, and where."""
_LINK = re.compile(r"(\]\()(?![a-z+]+:|#)([^)\s]+\))")


def built_version() -> str:
    """The version of what is built of this source: without a commit only where a release is
    checked out by its tag and unchanged, or the source is no checkout."""
    source = _version_module()
    commit = source.commit_of(ROOT)
    if source.BUILT or commit is None:
        return str(source.version_of(ROOT))
    is_dirty = bool(_git("status", "--porcelain"))
    is_tagged = f"v{source.BASE}" in _git("tag", "--points-at", "HEAD").splitlines()
    if is_tagged and not is_dirty:
        return str(source.BASE)
    return str(source.with_commit(source.BASE, commit, is_dirty=is_dirty))


def _version_module() -> ModuleType:
    spec = spec_from_file_location("zerotools_version", ROOT / VERSION_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _git(*arguments: str) -> str:
    """What git prints of this source; "" where it is not installed or refuses.

    A checkout of another user is asked too: its build, which runs here, is of that user as well.
    A hook of git names its own repository in the environment, which may be another one.
    """
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *arguments]
    around = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=around)
        return done.stdout.strip()
    except OSError:
        return ""


def absolute_links(text: str, address: str, reference: str) -> str:
    """README with links that an index of packages can follow: to `reference` (a tag or branch) of
    the repository at `address`."""
    return _LINK.sub(rf"\g<1>{address}/blob/{reference}/\g<2>", text)


class CustomMetadataHook(MetadataHookInterface):
    """The README of the metadata, which is shown far from the files that it links to."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the `readme` of a project."""
        version = built_version()
        reference = "main" if ".dev" in version or "+" in version else f"v{version}"
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        address = metadata["urls"]["Repository"]
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute_links(text, address, reference),
        }


class CustomBuildHook(BuildHookInterface[Any]):
    """What a wheel and a source distribution have beyond the files of the source."""

    _scratch: str | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files; an editable wheel has none, as it shows the checkout."""
        if version == "editable":
            return
        files = build_data["force_include"]
        if self.target_name == "wheel":
            files |= {str(ROOT / name): place for name, place in PACKAGED.items()}
        source = (ROOT / VERSION_FILE).read_text(encoding="utf-8")
        if _NOT_BUILT in source:
            self._scratch = mkdtemp()
            written = Path(self._scratch) / "version.py"
            built = f'BUILT = "{self.metadata.version}"\n'
            written.write_text(source.replace(_NOT_BUILT, built), encoding="utf-8")
            files[str(written)] = VERSION_FILE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what only the build needed."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch)
