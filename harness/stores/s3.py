"""S3 on loopback: moto's server, which keeps all objects in memory.

It honours ranges (also of a suffix; 416 behind the end), `If-Match` and `If-None-Match` of GET and
HEAD, `If-None-Match: *` and `If-Match` of PUT and CompleteMultipartUpload, multipart uploads with
their list and abort, a completion that comes twice (200 again, as S3), pages of ListObjectsV2
(`max-keys`, continuation tokens, `start-after`, a delimiter), and the ETags of S3: the MD5, or that
of the parts' MD5s with their number.

It does not:

- check credentials: any key and any signature may do everything. A request without a signature gets
  403, with an empty body. `harness.stores.faults` simulates a bucket without rights;
- check the MD5 and the checksums that a client sends with a body;
- read only the bytes of a range: each takes as long as the whole object (0.13 s for 256 MiB), so
  that ranges of a large object cannot be timed;
- wait, slow down, or be inconsistent: a listing has all objects that were written before it.
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
"""The Authorization header of requests without a signature: moto only reads the region in it."""


def why_not() -> str | None:
    """Return why S3 cannot be started here, or None if it can."""
    lacking = [name for name in ("moto", "flask", "flask_cors") if find_spec(name) is None]
    return f"not installed: {', '.join(lacking)} (the extra `test`)" if lacking else None


class S3Server(ListeningServer):
    """Moto's S3 with the named buckets, all empty. `bucket` is the first of them.

    A page of a listing has `page_keys` keys at most, as the default of 1,000 takes long to fill.
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
        """Write an object, bypassing all proxies."""
        self.ask("PUT", f"/{bucket or self.bucket}/{quote(key)}", data)

    def get(self, key: str, bucket: str | None = None) -> bytes:
        """Return the bytes of an object, bypassing all proxies.

        Raises:
            urllib.error.HTTPError: the object does not exist.
        """
        return self.ask("GET", f"/{bucket or self.bucket}/{quote(key)}")

    def sizes(self, prefix: str = "", bucket: str | None = None) -> dict[str, int]:
        """Return all objects below a prefix, with their sizes in bytes."""
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
        """Send any request, bypassing all proxies; return the body of the answer.

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
    """Return the variables with which a client of S3 uses the server at `url`, and no file of its
    user."""
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
