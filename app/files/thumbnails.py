"""Small versions of raster images, within bounds of memory and time."""

from __future__ import annotations

import io
import re
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from app.errors import BadRequest, Unavailable
from app.files import content, service
from app.files.service import File

SIZE = re.compile(r"([0-9]{1,4})x([0-9]{1,4})")
SMALLEST, LARGEST = 16, 2048
MAX_PIXELS = 24_000_000  # 96 MB decoded
MAX_BYTES = 20 * 2**20
# A JPEG may describe itself in any number of scans, and each goes through all of its pixels.
MAX_SCANS = 100
SCAN = b"\xff\xda"
CPU_SECONDS = 5
WAIT_SECONDS, MOST_WAITING = 5, 2  # of the four threads of a process, one stays free
FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF", "image/webp": "WEBP"}

# What Pillow raises for images that are not whole, or lie.
DAMAGED = (
    *(OSError, SyntaxError, ValueError, EOFError, struct.error),
    *(zlib.error, TypeError, LookupError, AttributeError, ArithmeticError),
)

_one_at_a_time = threading.BoundedSemaphore(1)  # in a process, for its memory
_room = threading.BoundedSemaphore(1 + MOST_WAITING)


class Source(io.BytesIO):
    """An encoded image, which can be read until its reader has worked for too long.

    Images may consist of millions of parts that are read one by one.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._until = time.thread_time() + CPU_SECONDS

    def read(self, size: int | None = -1, /) -> bytes:
        """Read bytes. Raises OSError, as for an image that is damaged."""
        if time.thread_time() > self._until:
            raise OSError("The image takes too long.")
        return super().read(size)


class Thumbnail(NamedTuple):
    """An image in WebP."""

    data: bytes
    mime_type: str = "image/webp"


def parse_size(text: str) -> tuple[int, int]:
    """Width and height of `WxH`. Raises BadRequest."""
    found = SIZE.fullmatch(text)
    size = (int(found[1]), int(found[2])) if found else (0, 0)
    if not all(SMALLEST <= side <= LARGEST for side in size):
        raise BadRequest(f"thumb is WxH, each from {SMALLEST} to {LARGEST}.", error="thumb_invalid")
    return size


def create(file: File, size: tuple[int, int]) -> Thumbnail:
    """The image, no larger than this. Raises BadRequest for what is no raster image."""
    if file.mime_type not in content.RASTER:
        raise BadRequest("Only PNG, JPEG, GIF and WebP have thumbnails.", error="thumb_invalid")
    if file.size > MAX_BYTES:
        raise _too_large()
    with _acquired(_room), _acquired(_one_at_a_time, WAIT_SECONDS):
        return Thumbnail(_scaled(b"".join(service.read(file, 0, file.size)), file, size))


@contextmanager
def _acquired(semaphore: threading.BoundedSemaphore, seconds: float = 0) -> Iterator[None]:
    if not semaphore.acquire(timeout=seconds):
        raise Unavailable
    try:
        yield
    finally:
        semaphore.release()


def _scaled(data: bytes, file: File, size: tuple[int, int]) -> bytes:
    from PIL import Image, ImageOps  # on use: large

    if file.mime_type == "image/jpeg" and data.count(SCAN) > MAX_SCANS:
        raise _too_large()
    try:
        with Image.open(Source(data), formats=[FORMATS[file.mime_type]]) as image:
            if image.width * image.height > MAX_PIXELS:
                raise _too_large()
            image.draft("RGB", size)
            ImageOps.exif_transpose(image, in_place=True)  # else it makes a copy of every image
            image.thumbnail(size)
            target = io.BytesIO()
            has_alpha = "A" in image.getbands() or "transparency" in image.info
            image.convert("RGBA" if has_alpha else "RGB").save(target, "WEBP", quality=80)
            return target.getvalue()
    except (Image.DecompressionBombError, *DAMAGED):
        raise BadRequest("The image cannot be read.", error="thumb_invalid") from None


def _too_large() -> BadRequest:
    return BadRequest("The image is too large for a thumbnail.", error="thumb_invalid")
