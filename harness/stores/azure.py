"""Azure Blob Storage on loopback: Microsoft's Azurite, which keeps all blobs in memory.

`scripts/azurite` installs Azurite with npm into a separate directory. Azurite checks the signatures
of requests. It supports ranges, `If-Match`, `If-None-Match: *`, lists of blocks, and pages of
listings.

It differs from Azure:

- For a range behind the end of a blob, it answers 206 with no bytes, not 416.
- It ignores `startFrom` of a listing (obstore's `offset`): a listing begins with the first key.
- It has only one account, with a public key. It has no access rights for single containers, and no
  Entra ID over plain HTTP.
- It never waits or limits the rate of requests: `harness.stores.faults` causes such faults.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote, urlencode

from harness.stores.listening import HOST, ListeningServer

CONTAINER = "checkpoints"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The public key of the account that every Azurite has."""
PROGRAM = Path(__file__).parents[2] / ".azurite/node_modules/azurite/dist/src/blob/main.js"
_VERSION = "2021-12-02"


def why_not() -> str | None:
    """Return the reason why Azurite cannot be started here; None if it can be started."""
    if shutil.which("node") is None:
        return "Node.js, which Azurite needs, is not installed"
    return None if PROGRAM.exists() else "Azurite is not installed; run scripts/azurite"


class AzureServer(ListeningServer):
    """Azurite with empty containers. `container` is the first of them."""

    def __init__(self, containers: Sequence[str] = (CONTAINER,)) -> None:
        super().__init__()
        self.containers = tuple(containers)
        self.container = self.containers[0]

    def command(self) -> list[str]:
        return [
            *("node", str(PROGRAM), "--blobHost", HOST, "--blobPort", str(self.port)),
            *("--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"),
        ]

    @property
    def env(self) -> dict[str, str]:
        return client_env(self.url)

    def prepare(self) -> None:
        for name in self.containers:
            self.ask("PUT", f"/{name}", {"restype": "container"})

    def put(self, key: str, data: bytes) -> None:
        """Write a blob into the first container. The request bypasses all proxies."""
        self.ask("PUT", f"/{self.container}/{quote(key)}", {}, data)

    def get(self, key: str) -> bytes:
        """Return the bytes of a blob in the first container. The request bypasses all proxies.

        Raises:
            urllib.error.HTTPError: the blob does not exist.
        """
        return self.ask("GET", f"/{self.container}/{quote(key)}", {})

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the size in bytes of each blob in the first container that begins with `prefix`,
        by name.
        """
        return self._listed({"prefix": prefix})

    def uploads(self) -> list[str]:
        """Return the keys that have uploaded blocks, but no blob.

        Azure removes such blocks after a week.
        """
        every = self._listed({"include": "uncommittedblobs"})
        return sorted(every.keys() - self.sizes().keys())

    def _listed(self, more: dict[str, str]) -> dict[str, int]:
        found: dict[str, int] = {}
        query = {"restype": "container", "comp": "list", **more}
        while True:
            page = ET.fromstring(self.ask("GET", f"/{self.container}", query))
            for each in page.iter("Blob"):
                found[each.findtext("Name", "")] = int(each.findtext(".//Content-Length") or 0)
            marker = page.findtext("NextMarker")
            if not marker:
                return found
            query["marker"] = marker

    def ask(self, method: str, path: str, query: dict[str, str], data: bytes = b"") -> bytes:
        """Send a signed request to a path of the account, and return the body of the answer.

        The request bypasses all proxies.

        Raises:
            urllib.error.HTTPError: the status is not 2xx.
        """
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
        kind = "application/octet-stream" if data else ""
        if method == "PUT" and not query:
            headers["x-ms-blob-type"] = "BlockBlob"
        signed = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        fields = "".join(f"\n{name}:{query[name]}" for name in sorted(query))
        length = str(len(data)) if data else ""
        text = f"{method}\n\n\n{length}\n\n{kind}\n\n\n\n\n\n\n{signed}/{ACCOUNT}/{ACCOUNT}{path}"
        code = hmac.new(base64.b64decode(KEY), (text + fields).encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(code).decode()}"
        if data:
            headers["Content-Type"] = kind
        where = f"{self.url}/{ACCOUNT}{path}" + (f"?{urlencode(query)}" if query else "")
        request = urllib.request.Request(where, data or None, headers, method=method)
        with urllib.request.urlopen(request) as answer:
            told: bytes = answer.read()
        return told


def client_env(url: str) -> dict[str, str]:
    """Return the environment variables with which obstore uses the Azurite at `url`."""
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_ENDPOINT": f"{url}/{ACCOUNT}",
        "AZURE_ALLOW_HTTP": "true",
    }
