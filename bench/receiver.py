"""A cheap webhook receiver in its own process: records when each delivery arrived."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import Counter

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
DELIVERY = re.compile(rb"x-service-delivery: *([0-9a-f-]+)", re.IGNORECASE)
seen: Counter[bytes] = Counter()
times: list[float] = []


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Handle a request; `GET /` returns the deliveries so far."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            told = (
                f"{len(seen)} {sum(seen.values())} {min(times, default=0)} {max(times, default=0)}"
            )
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + told.encode())
        elif head.startswith(b"POST /hang"):
            await asyncio.sleep(3600)
        else:
            length = LENGTH.search(head)
            await reader.readexactly(int(length[1]) if length else 0)
            delivery = DELIVERY.search(head)
            seen[delivery[1] if delivery else b""] += 1
            times.append(time.monotonic())
            writer.write(ANSWER)
        await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def main() -> None:
    """Listen on the port named on the command line."""
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), backlog=512)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
