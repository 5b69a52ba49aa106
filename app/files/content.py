"""What a file is, by its content, and how browsers may show it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from urllib.parse import quote

import puremagic

HEAD_BYTES = 8192  # enough to tell the type
UNKNOWN, TEXT, ARCHIVE = "application/octet-stream", "text/plain", "application/zip"
LONGEST_NAME = 255
CERTAIN = 0.5  # of puremagic's confidence, from which a format counts that others contain
# Texts differ by their use, not by their content; none of these is shown by browsers.
TEXTS = {
    ".csv": "text/csv",
    ".json": "application/json",
    ".md": "text/markdown",
    ".tsv": "text/tab-separated-values",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
# Texts that are more than texts to the programs that open them.
MARKUP = {
    "application/pdf": re.compile(rb"%PDF-"),
    "application/rtf": re.compile(rb"\{\\rtf"),
    "image/svg+xml": re.compile(rb"(?is).*<svg[\s>/]"),
    "text/html": re.compile(
        rb"(?is).*<(!doctype\s+html|html|head|body|script|iframe|style|title|a|img|div|meta)[\s>/]"
    ),
    "application/xml": re.compile(rb"\s*<(\?xml|[a-zA-Z_!])"),
}
SHOWN = re.compile(r"image/(?!svg)[a-z0-9.+-]+|application/pdf|audio/.+|video/.+|text/plain")
RASTER = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r\f\x1b")
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\u0080-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def mime_type(head: bytes, name: str) -> str:
    """The type of a file that begins with these bytes; its name only tells texts apart."""
    if not head:
        return UNKNOWN
    if _is_text(head):
        of_markup = (kind for kind, pattern in MARKUP.items() if pattern.match(head))
        return next(of_markup, TEXTS.get(PurePosixPath(name).suffix.lower(), TEXT))
    return _binary(head)


def _is_text(head: bytes) -> bool:
    if not CONTROLS.isdisjoint(head):
        return False
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return len(head) == HEAD_BYTES and error.start > len(head) - 4  # cut within a character
    return True


def _binary(head: bytes) -> str:
    try:
        found = puremagic.magic_string(head)
    except (puremagic.PureError, ValueError):
        return UNKNOWN
    likely = [
        one for one in found if "/" in one.mime_type and not one.mime_type.startswith("text/")
    ]
    if head.startswith(b"PK\x03\x04"):
        likely = [one for one in likely if one.confidence >= CERTAIN]
        return likely[0].mime_type if likely else ARCHIVE
    return likely[0].mime_type if likely else UNKNOWN


def is_shown(mime_type: str) -> bool:
    """Whether browsers may show a file of this type instead of saving it."""
    return SHOWN.fullmatch(mime_type) is not None


def clean_name(name: str | None) -> str:
    """A file name without folders and control characters, cut but for its ending."""
    text = UNPRINTABLE.sub("", name or "").replace("\\", "/").rpartition("/")[2].strip()
    text = text.encode("utf-8", "ignore").decode()
    if text in ("", ".", ".."):
        return "file"
    if len(text) <= LONGEST_NAME:
        return text
    ending = PurePosixPath(text).suffix[:20]
    return text[: LONGEST_NAME - len(ending)] + ending


def disposition(mime_type: str, name: str) -> str:
    """The Content-Disposition of a file: shown where that is safe, else saved under its name."""
    kind = "inline" if is_shown(mime_type) else "attachment"
    plain = re.sub(r'[^ -~]|["\\%]', "_", name)
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
