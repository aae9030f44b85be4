"""Serve the files as a read-only S3 bucket, path style, to clients that sign their requests.

GET /                  ListBuckets         GET /BUCKET?list-type=2  ListObjectsV2
HEAD /BUCKET           HeadBucket          GET, HEAD /BUCKET/KEY    GetObject, HeadObject
GET /BUCKET?location   GetBucketLocation
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from xml.sax.saxutils import escape

from zerotools.ops.serving.http_answers import (
    ReadRequest,
    ServedAnswer,
    ServedFile,
    ServedModel,
    of_file,
    of_text,
)

_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_SPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
MOST_KEYS = 1000
_STATUSES = {
    "NoSuchKey": HTTPStatus.NOT_FOUND,
    "NoSuchBucket": HTTPStatus.NOT_FOUND,
    "InvalidArgument": HTTPStatus.BAD_REQUEST,
    "NotImplemented": HTTPStatus.NOT_IMPLEMENTED,
    "MethodNotAllowed": HTTPStatus.METHOD_NOT_ALLOWED,
    "InternalError": HTTPStatus.INTERNAL_SERVER_ERROR,
}


def bucket_answer(model: ServedModel, asked: ReadRequest) -> ServedAnswer:
    """Return the response to a request that had a valid signature."""
    bucket, *rest = asked.path or [""]
    key = "/".join(rest)
    if not bucket:
        return _buckets(model)
    if bucket != model.name:
        return error_answer("NoSuchBucket", f"the bucket is called {model.name}")
    if key:
        file = model.files.get(key)
        if file is None:
            return error_answer("NoSuchKey", f"{key} does not exist")
        return of_file(model, file, asked)
    if "location" in asked.query:
        return _xml(f"<LocationConstraint {_SPACE}/>")
    if asked.query.get("list-type") == "2":
        return _listing(model, asked)
    if set(asked.query) - {"x-id"}:
        return error_answer(
            "NotImplemented", "the bucket answers only ListObjectsV2 and its location"
        )
    return of_text(HTTPStatus.OK, "")


def error_answer(code: str, message: str, status: HTTPStatus | None = None) -> ServedAnswer:
    """Return an error in the XML form of S3."""
    body = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    return _xml(body, status or _STATUSES.get(code, HTTPStatus.FORBIDDEN))


def _buckets(model: ServedModel) -> ServedAnswer:
    made = f"<Name>{escape(model.name)}</Name><CreationDate>{_time(model)}</CreationDate>"
    return _xml(
        f"<ListAllMyBucketsResult {_SPACE}><Owner><ID>zerotools</ID></Owner>"
        f"<Buckets><Bucket>{made}</Bucket></Buckets></ListAllMyBucketsResult>"
    )


def _listing(model: ServedModel, asked: ReadRequest) -> ServedAnswer:
    query = asked.query
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("continuation-token") or query.get("start-after", "")
    most = query.get("max-keys", str(MOST_KEYS))
    if not most.isdecimal():
        return error_answer("InvalidArgument", f"max-keys is {most}; it must be a number")
    found = [each for each in _entries(model, prefix, delimiter) if each[0] > after]
    count = min(int(most), MOST_KEYS)
    page, rest = found[:count], found[count:]
    lines = [
        f"<ListBucketResult {_SPACE}><Name>{escape(model.name)}</Name>",
        f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>",
        f"<MaxKeys>{count}</MaxKeys>",
        f"<Delimiter>{escape(delimiter)}</Delimiter>" if delimiter else "",
        f"<IsTruncated>{'true' if rest and page else 'false'}</IsTruncated>",
    ]
    if rest and page:
        token = escape(page[-1][0])
        lines.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
    lines += [_entry(model, name, file) for name, file in page]
    return _xml("".join(lines) + "</ListBucketResult>")


def _entries(
    model: ServedModel, prefix: str, delimiter: str
) -> Sequence[tuple[str, ServedFile | None]]:
    """Return pairs (key, file) and (common prefix, None), in the order of the keys' bytes."""

    def every() -> Iterator[tuple[str, ServedFile | None]]:
        for name, file in model.files.items():
            if name.startswith(prefix):
                end = name.find(delimiter, len(prefix)) if delimiter else -1
                yield (name, file) if end < 0 else (name[: end + len(delimiter)], None)

    return sorted(dict(every()).items(), key=lambda each: each[0].encode())


def _entry(model: ServedModel, name: str, file: ServedFile | None) -> str:
    if file is None:
        return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
    return (
        f"<Contents><Key>{escape(name)}</Key><LastModified>{_time(model)}</LastModified>"
        f"<ETag>{escape(file.etag)}</ETag><Size>{file.size}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
    )


def _time(model: ServedModel) -> str:
    return datetime.fromtimestamp(model.since, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _xml(body: str, status: HTTPStatus = HTTPStatus.OK) -> ServedAnswer:
    return of_text(status, _HEAD + body, "application/xml")
