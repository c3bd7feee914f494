"""As much of S3's protocol as an object store's client uses, on a real socket; signatures are not checked."""

import hashlib
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


class FakeS3(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        # While set, everything is answered with 503.
        self.is_down = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "eu-central-1",
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeS3

    def log_message(self, *_: object) -> None: ...

    def _begin(self) -> tuple[str, dict[str, list[str]], bytes] | None:
        parts = urlsplit(self.path)
        body = self._body()
        if self.server.is_down:
            self._answer(503, b"<Error><Code>SlowDown</Code></Error>")
            return None
        return unquote(parts.path).lstrip("/"), parse_qs(parts.query, keep_blank_values=True), body

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") == "chunked":
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        if (begun := self._begin()) is None:
            return
        key, query, body = begun
        if "uploadId" in query:
            self.server.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
        else:
            self.server.objects[key] = body
        self._answer(200, ETag=_etag(body))

    def do_POST(self) -> None:
        if (begun := self._begin()) is None:
            return
        key, query, body = begun
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self.server.uploads[upload] = {}
            answer = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            self._answer(200, answer.encode())
        elif "uploadId" in query:
            pieces = self.server.uploads.pop(query["uploadId"][0])
            self.server.objects[key] = b"".join(pieces[number] for number in sorted(pieces))
            answer = (
                f"<CompleteMultipartUploadResult><ETag>{_etag(body)}</ETag></CompleteMultipartUploadResult>"
            )
            self._answer(200, answer.encode())
        elif "delete" in query:
            bucket = key.split("/")[0]
            for name in re.findall(rb"<Key>(.*?)</Key>", body):
                self.server.objects.pop(f"{bucket}/{name.decode()}", None)
            self._answer(200, b"<DeleteResult></DeleteResult>")
        else:
            self._answer(400)

    def do_GET(self) -> None:
        if (begun := self._begin()) is None:
            return
        data = self.server.objects.get(begun[0])
        if data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        headers = {"ETag": _etag(data), "Last_Modified": "Mon, 16 Nov 2026 00:00:00 GMT"}
        found = re.match(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        if found is None:
            self._answer(200, data, **headers)
            return
        first, last = int(found[1]), min(int(found[2]), len(data) - 1)
        content_range = f"bytes {first}-{last}/{len(data)}"
        self._answer(206, data[first : last + 1], Content_Range=content_range, **headers)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        if (begun := self._begin()) is None:
            return
        key, query, _ = begun
        if "uploadId" in query:
            self.server.uploads.pop(query["uploadId"][0], None)
        else:
            self.server.objects.pop(key, None)
        self._answer(204)


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


@contextmanager
def fake_s3() -> Iterator[FakeS3]:
    with FakeS3() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
