"""Writes digests of the files, and signatures with the maintainer's SSH key, without a network.

A signature is checked with:

    ssh-keygen -Y verify -f allowed_signers -I NAME -n file -s FILE.sig <FILE
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from harness.release.building import git, run
from zerotools.core.errors import BadRequest

SUMS = "SHA256SUMS"
NAMESPACE = "file"


def write_sums(files: Sequence[Path], out: Path) -> Path:
    """Write the file `SHA256SUMS` for `sha256sum --check` to the directory `out`."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / SUMS).write_text("".join(lines), "utf-8")
    return out / SUMS


def find_key(root: Path, given: Path | None) -> Path:
    """Return the key for signatures: `given`, or the signing key in git's configuration.

    Raises:
        BadRequest: no key is given or configured.
    """
    if given is None:
        configured = run(["git", "-C", root, "config", "--default", "", "user.signingkey"]).strip()
        is_ssh = git(root, "config", "--default", "", "gpg.format") == "ssh"
        if not configured or not is_ssh:
            raise BadRequest(
                "there is no key for signatures: name a key with --key, set git's user.signingkey "
                "and gpg.format=ssh, or pass --unsigned"
            )
        given = Path(configured).expanduser()
    if not given.is_file():
        raise BadRequest(f"the key {given} is not a file")
    return given.absolute()


def sign(files: Sequence[Path], key: Path) -> list[Path]:
    """Write a signature next to each file, and verify it.

    Raises:
        BadRequest: ssh-keygen cannot sign with `key`.
    """
    signatures = []
    for path in files:
        run(["ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", NAMESPACE, path])
        signature = path.with_name(f"{path.name}.sig")
        check = f"ssh-keygen -Y check-novalidate -n {NAMESPACE} -s {signature.name} <{path.name}"
        run(["sh", "-c", check], directory=path.parent)
        signatures.append(signature)
    return signatures
