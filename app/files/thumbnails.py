"""Small versions of raster images, within bounds of memory and time.

Each is made once, in one of a few sizes and forms, and kept beside the file until that is removed.
What is kept of a file takes no more room than the file, and counts for no quota.
"""

from __future__ import annotations

import io
import re
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from app.errors import BadRequest, Unavailable
from app.files import content, service, storage
from app.files.service import File

SIZE = re.compile(r"([0-9]{1,4})x([0-9]{1,4})")
STEPS = (
    *(16, 24, 32, 48, 64, 80, 100, 128, 160, 200),
    *(256, 320, 400, 512, 640, 800, 1024, 1280, 1600, 2048),
)
SMALLEST, LARGEST = STEPS[0], STEPS[-1]
MAX_PIXELS = 24_000_000  # 96 MB decoded
MAX_BYTES = 20 * 2**20
# A JPEG may describe itself in any number of scans, and each goes through all of its pixels.
MAX_SCANS = 100
SCAN = b"\xff\xda"
CPU_SECONDS = 5
WAIT_SECONDS, MOST_WAITING = 15, 2  # of the four threads of a process, one stays free
MOST_ACCOUNTS = 1000  # whose last turns are remembered
KEPT_BYTES = 128 * 1024  # of a file's thumbnails, if the file is smaller
MOST_KEPT = 100  # thumbnails of a file
FITS = ("contain", "cover")
WRITTEN = ("webp", "jpeg", "png")
QUALITY = {"webp": 80, "jpeg": 80}
FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF", "image/webp": "WEBP"}

# The errors of Pillow for images that are cut off or have false headers.
DAMAGED = (
    *(OSError, SyntaxError, ValueError, EOFError, struct.error),
    *(zlib.error, TypeError, LookupError, AttributeError, ArithmeticError),
)


@dataclass(eq=False)
class _Waiter:
    account_id: str
    is_refused: bool = False


class Turns:
    """One thumbnail at a time in a process, for its memory, and accounts in turn.

    Of those who wait, whose account had its last turn longest ago is next.

    If too many wait, the newest of the account with the most is refused, and of several such
    accounts the one whose last turn is the latest: one account's requests refuse only its own.
    """

    def __init__(self, most_waiting: int, seconds: float) -> None:
        self._most_waiting, self._seconds = most_waiting, seconds
        self._changed = threading.Condition()
        self._waiting: list[_Waiter] = []
        self._taken_by: str | None = None
        self._last: dict[str, float] = {}  # when the last turn of an account began

    @contextmanager
    def taken(self, account_id: str) -> Iterator[None]:
        """Wait for a turn, and have it. Raises Unavailable."""
        waiter = _Waiter(account_id)
        with self._changed:
            self._waiting.append(waiter)
            if len(self._waiting) > self._most_waiting + (self._taken_by is None):
                refused = max(reversed(self._waiting), key=self._weight)
                refused.is_refused = True
                self._waiting.remove(refused)
                self._changed.notify_all()
            self._changed.wait_for(
                lambda: waiter.is_refused or self._is_next(waiter), self._seconds
            )
            is_next = not waiter.is_refused and self._is_next(waiter)
            if not waiter.is_refused:
                self._waiting.remove(waiter)
            if not is_next:
                raise Unavailable
            self._taken_by = account_id
            self._last.pop(account_id, None)
            self._last[account_id] = time.monotonic()
            if len(self._last) > MOST_ACCOUNTS:
                del self._last[next(iter(self._last))]
        try:
            yield
        finally:
            with self._changed:
                self._taken_by = None
                self._changed.notify_all()

    def _is_next(self, waiter: _Waiter) -> bool:
        if self._taken_by is not None:
            return False
        return waiter is min(self._waiting, key=lambda one: self._last.get(one.account_id, 0))

    def _weight(self, waiter: _Waiter) -> tuple[int, float]:
        of = waiter.account_id
        count = sum(one.account_id == of for one in self._waiting) + (self._taken_by == of)
        return count, self._last.get(of, 0)


_turns = Turns(MOST_WAITING, WAIT_SECONDS)


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


class Form(NamedTuple):
    """What a thumbnail is to be: no larger than this, whole or cut to the shape, in a format."""

    width: int
    height: int
    fit: str = "contain"
    format: str = "webp"

    @property
    def name(self) -> str:
        """Tells it from the other thumbnails of a file."""
        usual = self._field_defaults.values()
        return "-".join([f"{self.width}x{self.height}", *(x for x in self[2:] if x not in usual)])

    @property
    def mime_type(self) -> str:
        return f"image/{self.format}"


def parse(thumb: str | None, fit: str | None = None, format: str | None = None) -> Form | None:
    """What `thumb=WxH&fit=F&format=F` asks for; None without `thumb`. Raises BadRequest.

    Each side is the next smaller step.
    """
    if thumb is None:
        if fit is not None or format is not None:
            raise _invalid("fit and format are of a thumbnail: name its size by thumb.")
        return None
    found = SIZE.fullmatch(thumb)
    size = (int(found[1]), int(found[2])) if found else (0, 0)
    if not all(SMALLEST <= side <= LARGEST for side in size):
        raise _invalid(f"thumb is WxH, each from {SMALLEST} to {LARGEST}.")
    if fit not in (None, *FITS):
        raise _invalid(f"fit is one of {', '.join(FITS)}.")
    if format not in (None, *WRITTEN):
        raise _invalid(f"format is one of {', '.join(WRITTEN)}.")
    width, height = (max(step for step in STEPS if step <= side) for side in size)
    return Form(width, height, fit or "contain", format or "webp")


def get(file: File, form: Form) -> bytes:
    """The image in this form. Raises BadRequest for what is no raster image."""
    if file.mime_type not in content.RASTER:
        raise _invalid("Only PNG, JPEG, GIF and WebP have thumbnails.")
    if file.size > MAX_BYTES:
        raise _too_large()
    key = f"{storage.thumbnails_of(file.account_id, file.id)}{form.name}"
    data = _kept(key)
    if data is None:
        with _turns.taken(file.account_id):
            data = _kept(key)  # who had the turn before may have made it
            if data is None:
                data = _scaled(b"".join(service.read(file, 0, file.size)), file, form)
                _keep(file, key, data)
    return data


def _kept(key: str) -> bytes | None:
    with suppress(storage.Missing):
        return b"".join(storage.current().read(key, 0, storage.PART))
    return None


def _keep(file: File, key: str, data: bytes) -> None:
    place, left = storage.current(), storage.free_bytes()
    if len(data) > storage.PART or (left is not None and left < storage.LEFT_FREE):
        return
    with suppress(Unavailable):  # it is made again
        sizes = [one.size for one in place.blobs(storage.thumbnails_of(file.account_id, file.id))]
        has_room = sum(sizes) + len(data) <= max(file.size, KEPT_BYTES)
        if has_room and len(sizes) < MOST_KEPT:
            storage.put_stream(key, io.BytesIO(data))
            if service.find(file.id, file.account_id) is None:  # removed meanwhile
                place.delete(key)


def _scaled(data: bytes, file: File, form: Form) -> bytes:
    from PIL import Image, ImageOps  # on use: large

    if file.mime_type == "image/jpeg" and data.count(SCAN) > MAX_SCANS:
        raise _too_large()
    try:
        with Image.open(Source(data), formats=[FORMATS[file.mime_type]]) as image:
            if image.width * image.height > MAX_PIXELS:
                raise _too_large()
            is_whole = form.fit == "contain"
            side = max(form.width, form.height)  # which of the two will be turned
            image.draft("RGB", form[:2] if is_whole else (side, side))
            ImageOps.exif_transpose(image, in_place=True)  # else it makes a copy of every image
            if is_whole:
                image.thumbnail(form[:2])
            scaled: Image.Image = image if is_whole else _cut(image, form)
            target = io.BytesIO()
            has_alpha = "A" in scaled.getbands() or "transparency" in scaled.info
            scaled = scaled.convert("RGBA" if has_alpha else "RGB")
            if has_alpha and form.format == "jpeg":
                white = Image.new("RGBA", scaled.size, "white")
                scaled = Image.alpha_composite(white, scaled).convert("RGB")
            options = {"quality": QUALITY[form.format]} if form.format in QUALITY else {}
            scaled.save(target, form.format.upper(), **options)
            return target.getvalue()
    except (Image.DecompressionBombError, *DAMAGED):
        raise _invalid("The image cannot be read.") from None


def _cut(image: Any, form: Form) -> Any:
    """The middle of an image in the shape of a form, never enlarged."""
    from PIL import ImageOps  # on use: large

    share = min(1, image.width / form.width, image.height / form.height)
    width, height = (max(1, round(side * share)) for side in form[:2])
    return ImageOps.fit(image, (width, height))


def _too_large() -> BadRequest:
    return _invalid("The image is too large for a thumbnail.")


def _invalid(message: str) -> BadRequest:
    return BadRequest(message, error="thumb_invalid")
