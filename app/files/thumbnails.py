"""Small versions of raster images, within bounds of memory and time."""

from __future__ import annotations

import io
import re
import struct
import threading
import zlib
from typing import NamedTuple

from PIL import Image, ImageOps

from app.errors import BadRequest, Unavailable
from app.files import content, service
from app.files.service import File

SIZE = re.compile(r"([0-9]{1,4})x([0-9]{1,4})")
SMALLEST, LARGEST = 16, 2048
MAX_PIXELS = 24_000_000  # 96 MB decoded
MAX_BYTES = 20 * 2**20
WAIT_SECONDS = 5
FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF", "image/webp": "WEBP"}

# What Pillow raises for images that are not whole, or lie.
DAMAGED = (
    *(Image.DecompressionBombError, OSError, SyntaxError, ValueError, EOFError, struct.error),
    *(zlib.error, TypeError, LookupError, AttributeError, ArithmeticError),
)

_one_at_a_time = threading.BoundedSemaphore(1)  # in a process, for its memory


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
    if not _one_at_a_time.acquire(timeout=WAIT_SECONDS):
        raise Unavailable
    try:
        return Thumbnail(_scaled(b"".join(service.read(file, 0, file.size)), file, size))
    finally:
        _one_at_a_time.release()


def _scaled(data: bytes, file: File, size: tuple[int, int]) -> bytes:
    try:
        with Image.open(io.BytesIO(data), formats=[FORMATS[file.mime_type]]) as image:
            if image.width * image.height > MAX_PIXELS:
                raise _too_large()
            image.draft("RGB", size)
            turned = ImageOps.exif_transpose(image)
            turned.thumbnail(size)
            target = io.BytesIO()
            has_alpha = "A" in turned.getbands() or "transparency" in turned.info
            turned.convert("RGBA" if has_alpha else "RGB").save(target, "WEBP", quality=80)
            return target.getvalue()
    except DAMAGED:
        raise BadRequest("The image cannot be read.", error="thumb_invalid") from None


def _too_large() -> BadRequest:
    return BadRequest("The image is too large for a thumbnail.", error="thumb_invalid")
