"""Google Cloud Storage on loopback, in a small server.

Emulators of GCS on PyPI answer its JSON API. But obstore uses the XML API (through Rust's
object_store). This server answers the following part of the XML API:

- GET, HEAD, PUT and DELETE of an object, with ranges, `If-Match`, `If-None-Match`, generations
  (`x-goog-generation`) and `x-goog-if-generation-match` (0: no object may exist yet)
- PUT with `x-goog-copy-source`
- pages of a listing (`list-type=2`, prefix, delimiter, start-after, max-keys, tokens)
- multipart uploads: begin, parts, complete, abort; as with GCS, all parts except the last one must
  have at least 5 MiB

The server follows Google's description, and was not compared with Google's servers. It does not
check credentials or the checksums that a client sends. It has no versions of objects, no metadata
of users, no batches, and no resumable uploads. Objects are in memory, and the process that started
the server can read them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from itertools import count
from mmap import mmap
from threading import Lock
from urllib.parse import unquote
from xml.sax.saxutils import escape

from harness.stores.content import Content, answer_of, etag_of
from harness.stores.loopback import Asked, Connection, LoopbackServer

BUCKET = "checkpoints"
LEAST_PART_BYTES = 5 << 20
_Answer = tuple[int, dict[str, str], bytes | mmap]


class GcsServer(LoopbackServer):
    """The XML API of GCS with empty buckets of these names."""

    def __init__(self, buckets: Sequence[str] = (BUCKET,), page_keys: int = 1000) -> None:
        super().__init__()
        self.bucket = buckets[0]
        self.page_keys = page_keys
        self.objects: dict[str, dict[str, Content]] = {name: {} for name in buckets}
        self.parts: dict[str, tuple[str, dict[int, bytes]]] = {}
        """The unfinished multipart uploads, keyed by id: bucket/key, and the parts."""
        self._generations = count(time.time_ns() // 1000)
        self._lock = Lock()

    @property
    def env(self) -> dict[str, str]:
        """The environment variables of a client."""
        return client_env(self.url)

    def put(self, key: str, data: bytes, bucket: str | None = None) -> None:
        """Write an object. This bypasses all proxies."""
        with self._lock:
            self._write(bucket or self.bucket, key, data)

    def get(self, key: str, bucket: str | None = None) -> bytes:
        """Return the bytes of an object.

        Raises:
            KeyError: the object does not exist.
        """
        return bytes(self.objects[bucket or self.bucket][key].data)

    def sizes(self, prefix: str = "", bucket: str | None = None) -> dict[str, int]:
        """Return the size in bytes of each object that begins with `prefix`, by name."""
        held = self.objects[bucket or self.bucket]
        return {key: len(held[key].data) for key in sorted(held) if key.startswith(prefix)}

    def uploads(self) -> list[str]:
        """Return the keys of multipart uploads that were neither completed nor aborted."""
        return sorted(where.partition("/")[2] for where, _ in self.parts.values())

    def handle(self, asked: Asked, connection: Connection) -> None:
        bucket, _, key = unquote(asked.path.lstrip("/")).partition("/")
        with self._lock:
            if bucket not in self.objects:
                answer = _error(404, "NoSuchBucket")
            elif not key:
                answer = self._list(bucket, asked.query)
            elif "uploads" in asked.query or "uploadId" in asked.query:
                answer = self._upload(bucket, key, asked)
            else:
                answer = self._object(bucket, key, asked)
        connection.send(*answer)

    def _write(self, bucket: str, key: str, data: bytes) -> _Answer:
        generation = next(self._generations)
        more = {"x-goog-generation": str(generation), "x-goog-metageneration": "1"}
        held = Content(data, etag_of(data + b"%d" % generation), time.time(), more)
        self.objects[bucket][key] = held
        return 200, {"ETag": held.etag, **more}, b""

    def _object(self, bucket: str, key: str, asked: Asked) -> _Answer:
        held = self.objects[bucket].get(key)
        if asked.method == "PUT":
            there = held.headers["x-goog-generation"] if held else "0"
            if asked.headers.get("x-goog-if-generation-match", there) != there:
                return _error(412, "PreconditionFailed")
            if (source := asked.headers.get("x-goog-copy-source")) is None:
                return self._write(bucket, key, asked.body)
            from_bucket, _, from_key = unquote(source.lstrip("/")).partition("/")
            if (copied := self.objects.get(from_bucket, {}).get(from_key)) is None:
                return _error(404, "NoSuchKey")
            status, headers, _body = self._write(bucket, key, bytes(copied.data))
            return status, headers, b"<CopyObjectResult></CopyObjectResult>"
        if held is None:
            return _error(404, "NoSuchKey")
        if asked.method == "DELETE":
            del self.objects[bucket][key]
            return 204, {}, b""
        return answer_of(held, asked)

    def _upload(self, bucket: str, key: str, asked: Asked) -> _Answer:
        where = f"{bucket}/{key}"
        if asked.method == "POST" and "uploads" in asked.query:
            number = f"upload-{next(self._generations)}"
            self.parts[number] = where, {}
            told = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><UploadId>{number}</UploadId>"
            return _xml("InitiateMultipartUploadResult", told)
        number = asked.query.get("uploadId", "")
        if self.parts.get(number, ("", {}))[0] != where:
            return _error(404, "NoSuchUpload")
        parts = self.parts[number][1]
        if asked.method == "PUT":
            parts[int(asked.query["partNumber"])] = asked.body
            return 200, {"ETag": etag_of(asked.body)}, b""
        if asked.method == "DELETE":
            del self.parts[number]
            return 204, {}, b""
        return self._complete(bucket, key, number, asked.body.decode("utf-8"))

    def _complete(self, bucket: str, key: str, number: str, text: str) -> _Answer:
        parts = self.parts[number][1]
        chosen = [int(each) for each in re.findall(r"<PartNumber>(\d+)</PartNumber>", text)]
        said = [each.replace("&quot;", '"') for each in re.findall(r"<ETag>(.*?)</ETag>", text)]
        if [etag_of(parts[each]) for each in chosen if each in parts] != said:
            return _error(400, "InvalidPart")
        if chosen != sorted(set(chosen)):
            return _error(400, "InvalidPartOrder")
        if any(len(parts[each]) < LEAST_PART_BYTES for each in chosen[:-1]):
            return _error(400, "EntityTooSmall")
        _, headers, _ = self._write(bucket, key, b"".join(parts[each] for each in chosen))
        del self.parts[number]
        told = f"<Bucket>{bucket}</Bucket><Key>{escape(key)}</Key><ETag>{headers['ETag']}</ETag>"
        status, kind, body = _xml("CompleteMultipartUploadResult", told)
        return status, {**headers, **kind}, body

    def _list(self, bucket: str, query: dict[str, str]) -> _Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        most = min(int(query.get("max-keys", self.page_keys)), self.page_keys)
        found: dict[str, str] = {}
        for key in sorted(self.objects[bucket]):
            if not key.startswith(prefix):
                continue
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            name = key if cut < 0 else key[: cut + len(delimiter)]
            if name > after:
                found[name] = _entry(key, self.objects[bucket][key]) if cut < 0 else _common(name)
        page = list(found)[:most]
        told = f"<Name>{bucket}</Name><KeyCount>{len(page)}</KeyCount>"
        told += "".join(found[name] for name in page)
        if len(page) < len(found):
            token = escape(page[-1])
            told += f"<NextContinuationToken>{token}</NextContinuationToken>"
        more = "true" if len(page) < len(found) else "false"
        return _xml("ListBucketResult", f"{told}<IsTruncated>{more}</IsTruncated>")


def client_env(url: str) -> dict[str, str]:
    """Return the environment variables with which obstore uses the server at `url`, without a
    token.
    """
    key = {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": ""}
    return {
        "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({**key, "private_key_id": ""}),
        "GOOGLE_ALLOW_HTTP": "true",
    }


def _entry(key: str, held: Content) -> str:
    modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(held.modified))
    return (
        f"<Contents><Key>{escape(key)}</Key><Size>{len(held.data)}</Size>"
        f"<LastModified>{modified}</LastModified><ETag>{held.etag}</ETag></Contents>"
    )


def _common(name: str) -> str:
    return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"


def _xml(tag: str, inside: str, status: int = 200) -> _Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{tag}>{inside}</{tag}>'
    return status, {"Content-Type": "application/xml; charset=UTF-8"}, text.encode()


def _error(status: int, code: str) -> _Answer:
    return _xml("Error", f"<Code>{code}</Code><Message>{code}</Message>", status)
