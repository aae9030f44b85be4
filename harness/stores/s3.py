"""S3 on loopback: moto's server, which keeps all objects in memory.

It supports:

- ranges (also of the last bytes; 416 for a range behind the end)
- `If-Match` and `If-None-Match` of GET and HEAD; `If-Match` and `If-None-Match: *` of PUT and
  CompleteMultipartUpload
- multipart uploads, with their listing and abort; a second completion is answered with 200, as by
  S3
- pages of ListObjectsV2 (`max-keys`, continuation tokens, `start-after`, a delimiter)
- the ETags of S3: the MD5, or the MD5 of the parts' MD5s with the number of parts

It differs from S3:

- It does not check credentials: any key and any signature may do everything. A request without a
  signature gets 403, with an empty body. `harness.stores.faults` simulates a bucket without rights.
- It does not check the MD5 and the checksums that a client sends with a body.
- It reads the whole object for each range (0.13 s for 256 MiB), so the speed of ranges of a large
  object cannot be measured.
- It never waits, limits the rate of requests or is inconsistent: a listing has all objects that
  were written before it.
"""

from __future__ import annotations

import sys
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from harness.stores.listening import ListeningServer

BUCKET = "checkpoints"
REGION = "us-east-1"
KEY_ID, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
AUTHORIZATION = (
    f"AWS4-HMAC-SHA256 Credential={KEY_ID}/20200101/{REGION}/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
)
"""The header Authorization of requests without a signature. moto reads only the region from it."""


def why_not() -> str | None:
    """Return the reason why S3 cannot be started here; None if it can be started."""
    lacking = [name for name in ("moto", "flask", "flask_cors") if find_spec(name) is None]
    return f"not installed: {', '.join(lacking)} (the extra `test`)" if lacking else None


class S3Server(ListeningServer):
    """Moto's S3 with empty buckets of these names. `bucket` is the first of them.

    A page of a listing has at most `page_keys` keys. S3's default of 1,000 keys would need too many
    objects in a test.
    """

    def __init__(self, buckets: Sequence[str] = (BUCKET,), page_keys: int = 1000) -> None:
        super().__init__()
        self.page_keys = page_keys
        self.buckets = tuple(buckets)
        self.bucket = self.buckets[0]

    def command(self) -> list[str]:
        program = Path(__file__).with_name("moto_process.py")
        return [sys.executable, "-P", str(program), str(self.port)]

    @property
    def env(self) -> dict[str, str]:
        return client_env(self.url)

    def command_env(self) -> dict[str, str]:
        return {"MOTO_S3_DEFAULT_MAX_KEYS": str(self.page_keys)}

    def prepare(self) -> None:
        for name in self.buckets:
            self.make_bucket(name)

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        self.ask("PUT", f"/{name}")

    def put(self, key: str, data: bytes, bucket: str | None = None) -> None:
        """Write an object. The request bypasses all proxies."""
        self.ask("PUT", f"/{bucket or self.bucket}/{quote(key)}", data)

    def get(self, key: str, bucket: str | None = None) -> bytes:
        """Return the bytes of an object. The request bypasses all proxies.

        Raises:
            urllib.error.HTTPError: the object does not exist.
        """
        return self.ask("GET", f"/{bucket or self.bucket}/{quote(key)}")

    def sizes(self, prefix: str = "", bucket: str | None = None) -> dict[str, int]:
        """Return the size in bytes of each object that begins with `prefix`, by name."""
        found: dict[str, int] = {}
        where = f"/{bucket or self.bucket}?list-type=2&prefix={quote(prefix, safe='')}"
        token = ""
        while True:
            page = self._tree("GET", where + token)
            for each in page.findall("Contents"):
                found[each.findtext("Key", "")] = int(each.findtext("Size", "0"))
            following = page.findtext("NextContinuationToken")
            if following is None:
                return found
            token = f"&continuation-token={quote(following, safe='')}"

    def uploads(self, bucket: str | None = None) -> list[str]:
        """Return the keys of multipart uploads that were neither completed nor aborted."""
        page = self._tree("GET", f"/{bucket or self.bucket}?uploads")
        return sorted(each.findtext("Key", "") for each in page.findall("Upload"))

    def ask(self, method: str, path: str, data: bytes = b"") -> bytes:
        """Send a request to moto, and return the body of the answer. The request bypasses all
        proxies.

        Raises:
            urllib.error.HTTPError: the status is not 2xx.
        """
        request = urllib.request.Request(
            self.url + path,
            data or None,
            {"Authorization": AUTHORIZATION, "Content-Type": "application/octet-stream"},
            method=method,
        )
        with urllib.request.urlopen(request) as answer:
            told: bytes = answer.read()
        return told

    def _tree(self, method: str, path: str) -> ET.Element:
        tree = ET.fromstring(self.ask(method, path))
        for each in tree.iter():
            each.tag = each.tag.rpartition("}")[2]
        return tree


def client_env(url: str) -> dict[str, str]:
    """Return the environment variables with which a client of S3 uses the server at `url`.

    The client then reads no configuration files of its user.
    """
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ENDPOINT_URL_S3": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }
