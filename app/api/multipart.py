"""A form with one file in it, as it comes in: the file leaves piece by piece, all else is small and kept."""

from collections.abc import AsyncIterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from app.errors import ForemanError, InvalidRequest, PayloadTooLarge, Unparsable
from app.jobs.submission import invalid, shown

# Of the fields beside the file, each and all together.
MAX_FIELD_BYTES = 4096
MAX_HEADER_BYTES = 16 * 1024
MAX_FIELDS = 20
MAX_BOUNDARY = 256


class FileForm:
    """Reads the body of a request once; `fields` are whole when the last piece of the file was given."""

    def __init__(self, request: Request, field: str, max_file_bytes: int) -> None:
        kind, options = parse_options_header(request.headers.get("content-type", ""))
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not 1 <= len(boundary) <= MAX_BOUNDARY:
            raise Unparsable("The body must be multipart/form-data with a boundary.")
        self._receive = request.receive
        self._field = field
        self._most = max_file_bytes
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begins,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header_ends,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._part_goes_on,
                "on_part_end": self._part_ends,
                "on_end": self._form_ends,
            },
        )
        self._complete = False
        self._headers: dict[bytes, bytes] = {}
        self._name, self._value = bytearray(), bytearray()
        self._header_bytes = 0
        # The part that is being read: its name, and its text unless it is the file.
        self._part = ""
        self._text = bytearray()
        self._pieces: list[bytes] = []
        self.fields: dict[str, str] = {}
        # None until there is a file.
        self.filename: str | None = None
        self.size = 0
        # What was wrong with the body: whoever stores the pieces may have wrapped it.
        self.problem: ForemanError | None = None

    async def file_pieces(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            try:
                more = await self._read()
            except ForemanError as problem:
                self.problem = problem
                raise
            pieces, self._pieces = self._pieces, []
            if pieces:
                yield b"".join(pieces)

    async def _read(self) -> bool:
        """One more part of the body; False when that was the last."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest("The request ended before its body was complete.")
        try:
            self._parser.write(message.get("body", b""))
        except FormParserError as problem:
            raise Unparsable("The body is not a form: it does not keep to its boundary.") from problem
        if message.get("more_body", False):
            return True
        if not self._complete:
            raise Unparsable("The body is not a form: its last boundary is missing.")
        return False

    # -- what the parser calls -----------------------------------------------------------------------

    def _part_begins(self) -> None:
        self._headers.clear()
        self._header_bytes = 0
        self._part = ""
        self._text.clear()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._value += data[start:end]

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            raise InvalidRequest(f"The headers of a part may have at most {MAX_HEADER_BYTES} bytes.")

    def _header_ends(self) -> None:
        self._headers[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._part = options.get(b"name", b"").decode(errors="replace")
        if self._part in self.fields or (self._part == self._field and self.filename is not None):
            raise invalid(self._part, "is there twice")
        if self._part == self._field:
            self.filename = _plain_name(options.get(b"filename", b"").decode(errors="replace"))
        elif len(self.fields) == MAX_FIELDS:
            raise InvalidRequest(f"The form may have at most {MAX_FIELDS} fields.")

    def _part_goes_on(self, data: bytes, start: int, end: int) -> None:
        if self._part == self._field:
            self.size += end - start
            if self.size > self._most:
                raise PayloadTooLarge(f"A file may have at most {self._most} bytes.")
            self._pieces.append(data[start:end])
            return
        self._text += data[start:end]
        if len(self._text) > MAX_FIELD_BYTES:
            raise invalid(shown(self._part), f"may have at most {MAX_FIELD_BYTES} bytes")

    def _part_ends(self) -> None:
        if self._part != self._field:
            self.fields[self._part] = self._text.decode(errors="replace")

    def _form_ends(self) -> None:
        self._complete = True


def _plain_name(given: str) -> str:
    """A name without folders, and without what no name has."""
    name = given.replace("\\", "/").rpartition("/")[2]
    return "".join(each for each in name if each.isprintable())[:255] or "file"
