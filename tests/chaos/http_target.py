"""What jobs of kind `http` call: takes its time and writes down whose call it was.

python -m tests.chaos.http_target PORT RECORDS      GET /take/SECONDS
"""

import asyncio
import sys
from pathlib import Path

import uvloop

from tests.chaos.records import Recorder
from tests.patience import pretend_to_work

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}"


class Target:
    def __init__(self, records: Path) -> None:
        self._recorder = Recorder(records)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().split("\r\n")
                headers = {
                    name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
                }
                await reader.readexactly(int(headers.get("content-length", "0")))
                self._recorder.write("called", job=headers["idempotency-key"].strip('"'))
                await pretend_to_work(float(first.split(" ")[1].rpartition("/")[2]))
                writer.write(OK)
        except (OSError, EOFError):
            pass
        finally:
            writer.close()


async def main(port: int, records: Path) -> None:
    server = await asyncio.start_server(Target(records).serve, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), Path(sys.argv[2])))
