"""Finds the type of a file by its content, and how browsers may show it.

Of a ZIP archive only the directory and one small entry are read, within bounds: what it unpacks to,
and how many entries it claims, cost nothing.
"""

from __future__ import annotations

import codecs
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple
from urllib.parse import quote

from app import rules

HEAD_BYTES = 8192  # enough to tell the type of all but archives
UNKNOWN, TEXT = "application/octet-stream", "text/plain"
LONGEST_NAME = 255
# Texts differ by their use, not by their content; none of these is shown by browsers.
TEXTS = {
    ".csv": "text/csv",
    ".json": "application/json",
    ".md": "text/markdown",
    ".tsv": "text/tab-separated-values",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
HTML, SVG, XML = "text/html", "image/svg+xml", "application/xml"
# Texts that are more than texts to the programs that open them.
MARKED = {"%PDF-": "application/pdf", "{\\rtf": "application/rtf"}
# Markup begins behind this, as for browsers (WHATWG mimesniff 7.1). Tags further down, such as in
# the texts of a CSV file or a feed, say nothing.
PROLOGUE = re.compile(r"\s*(?:<!--.*?-->\s*|<\?[a-z].*?\?>\s*)*", re.DOTALL | re.IGNORECASE)
DECLARED = re.compile(r"\s*<\?xml\s", re.IGNORECASE)
DOCTYPE = re.compile(r"<!doctype\s+([\w:.-]+)", re.IGNORECASE)
ROOT = re.compile(r"<(?:[A-Za-z_][\w.-]*:)?([A-Za-z_][\w.-]*)(?=\s[^<]*>|\s*/?>|\s*$)")
PAGE_TAGS = frozenset({"html", "head", "body", "script", "iframe", "style", "title", "meta"})
# With these a page may begin, and a Markdown file or a table, too.
TEXT_TAGS = frozenset(
    ("a", "b", "br", "div", "font", "h1", "h2", "h3", "img", "link", "p", "span", "table")
)
BOMS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
SHOWN = re.compile(r"image/(?!svg)[a-z0-9.+-]+|application/pdf|audio/.+|video/.+|text/plain")
RASTER = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r\f\x1b")
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\u0080-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

# ISO base media files by their brand (https://mp4ra.org/registered-types/brands); others are video.
VIDEO = "video/mp4"
BRANDS = {
    **dict.fromkeys(("M4V ", "M4VH", "M4VP"), VIDEO),  # whose makers list M4A, too
    **dict.fromkeys(("M4A ", "M4B ", "M4P "), "audio/mp4"),  # RFC 4337
    **dict.fromkeys(("heic", "heix", "heim", "heis"), "image/heic"),
    **dict.fromkeys(("hevc", "hevx", "hevm", "hevs"), "image/heic-sequence"),
    **dict.fromkeys(("avif", "avis"), "image/avif"),
    **dict.fromkeys(("mif1", "mif2", "miaf"), "image/heif"),
    "msf1": "image/heif-sequence",
    "qt  ": "video/quicktime",
    **dict.fromkeys(("3gp4", "3gp5", "3gp6", "3gp7", "3ge6", "3gg6", "3gr6"), "video/3gpp"),
    **dict.fromkeys(("3g2a", "3g2b", "3g2c"), "video/3gpp2"),
    "crx ": "image/x-canon-cr3",
    "jp2 ": "image/jp2",  # RFC 3745
    "jpx ": "image/jpx",
    "jpm ": "image/jpm",
    "mjp2": "video/mj2",
}
SPECIFIC = ("image/heic", "image/heic-sequence", "image/avif")
VIDEO_IN_OGG = (b"\x80theora", b"BBCD\0", b"\x01video")
AUDIO_IN_OGG = (b"OpusHead", b"\x01vorbis", b"\x7fFLAC", b"Speex   ")  # RFC 5334
BEGINNINGS = {
    b"\xff\x4f\xff\x51": "image/j2c",
    b"\x1f\x8b": "application/gzip",
    b"%PDF-": "application/pdf",
}
COMPOUND = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
# The streams of a compound file (MS-CFB) by which earlier Office programs tell their documents.
STREAMS = {
    "WordDocument": "application/msword",
    "Workbook": "application/vnd.ms-excel",
    "Book": "application/vnd.ms-excel",
    "PowerPoint Document": "application/vnd.ms-powerpoint",
    "VisioDocument": "application/vnd.visio",
    "__properties_version1.0": "application/vnd.ms-outlook",
}
COMPOUND_TYPE = "application/x-ole-storage"
ENTRIES_READ = 64 * 128
ARCHIVE, JAR = "application/zip", "application/java-archive"
ANDROID = "application/vnd.android.package-archive"
END_BYTES = 22 + 65_535  # of the directory's end, with the longest comment
MOST_DIRECTORY, MOST_CONTENT_TYPES, LONGEST_TYPE = 2**20, 2**20, 256
END, ENTRY, LOCAL = b"PK\x05\x06", b"PK\x01\x02", b"PK\x03\x04"
CONTENT_TYPES, MIMETYPE = b"[Content_Types].xml", b"mimetype"
STORED, DEFLATED = 0, 8
# The content of the first entry in OpenDocument (part 2, 3.3) and EPUB (OCF 3.3, 4.3.3).
OF_MIMETYPE = re.compile(rb"application/(epub\+zip|vnd\.(oasis\.opendocument|sun\.xml)\.[a-z.-]+)")
# The type of a package's main part (ECMA-376 part 2, 10.1.2), and that of the file.
MAIN_PART = re.compile(
    rb"""ContentType\s*=\s*["']application/(vnd\.(?:openxmlformats-officedocument"""
    rb"""\.(?:wordprocessingml|spreadsheetml|presentationml)\.[a-z]+"""
    rb"""|ms-(?:word|excel|powerpoint)\.[a-z.]+?macroEnabled"""
    rb"""|ms-visio\.[a-z.]+?))(?:\.12)?\.main(?:\+xml)?["']""",
    re.IGNORECASE,
)


def mime_type(path: Path, head: bytes, name: str) -> str:
    """The type of a file that begins with these bytes; its name only tells texts apart."""
    if not head:
        return UNKNOWN
    text = decode(head)
    if text is not None:
        return _text_type(text, PurePosixPath(name).suffix.lower())
    if head.startswith((LOCAL, END)):
        return type_of(path)
    return _compound(path) if head.startswith(COMPOUND) else _binary(head)


def decode(head: bytes) -> str | None:
    """The beginning of a text: UTF-8, UTF-16 with a mark, or one byte a character; else None."""
    for mark, charset in BOMS.items():
        if head.startswith(mark):
            text = head[len(mark) :].decode(charset, "ignore")  # it may be cut within a character
            return text if CONTROLS.isdisjoint(map(ord, text)) else None
    if not CONTROLS.isdisjoint(head):
        return None
    try:
        return head.decode()
    except UnicodeDecodeError as error:
        if error.start > len(head) - 4 and len(head) >= HEAD_BYTES:
            return head.decode(errors="ignore")
    # Every byte has a meaning in Windows-1252 but five; other charsets are texts, too.
    return None if head.startswith(b"%PDF-") else head.decode("cp1252", "replace")


def _text_type(text: str, suffix: str) -> str:
    for beginning, kind in MARKED.items():
        if text.startswith(beginning):
            return kind
    return _markup(text, suffix) or TEXTS.get(suffix, TEXT)


def _markup(text: str, suffix: str) -> str | None:
    is_declared = DECLARED.match(text) is not None
    prologue = PROLOGUE.match(text)
    rest = text[prologue.end() if prologue else 0 :]
    doctype = DOCTYPE.match(rest)
    root = doctype or ROOT.match(rest)
    name = root[1].rpartition(":")[2].lower() if root else ""
    if name == "svg":
        return SVG
    if name in PAGE_TAGS or (name in TEXT_TAGS and not is_declared and suffix not in TEXTS):
        return HTML
    is_xml = is_declared or doctype or (root and suffix not in TEXTS)
    return XML if is_xml else None


def _binary(head: bytes) -> str:
    for beginning, kind in BEGINNINGS.items():
        if head.startswith(beginning):
            return kind
    if head.startswith(b"BM") and head[6:10] == b"\0\0\0\0":
        return "image/bmp"
    box = 12 if head[4:8] == b"jP  " else 0  # JPEG 2000 has a signature before its brands
    if head[box + 4 : box + 8] == b"ftyp":
        return _of_brands(head[box:])
    if head.startswith(b"OggS"):
        if any(codec in head for codec in VIDEO_IN_OGG):
            return "video/ogg"
        return "audio/ogg" if any(codec in head for codec in AUDIO_IN_OGG) else "application/ogg"
    import puremagic  # large, and few files get here

    try:
        found = puremagic.magic_string(head)
    except (puremagic.PureError, ValueError):
        return UNKNOWN
    likely = (one.mime_type for one in found if "/" in one.mime_type)
    return next((one for one in likely if not one.startswith("text/")), UNKNOWN)


def _of_brands(box: bytes) -> str:
    """The type by the major brand; where that is a general one, by those it is compatible with."""
    size = struct.unpack_from(">I", box)[0]
    names = [box[8:12], *(box[at : at + 4] for at in range(16, min(size, 256), 4))]
    kinds = [BRANDS.get(name.decode("latin-1")) for name in names]
    major, others = kinds[0], {*kinds[1:]}
    if major in ("image/heif", "image/heif-sequence"):
        return next((one for one in SPECIFIC if one in others), major)
    if major is None and "audio/mp4" in others and VIDEO not in others:
        return "audio/mp4"
    return major or VIDEO


def _compound(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(512)
        if len(head) < 512:
            return COMPOUND_TYPE
        (shift,), (first,) = struct.unpack_from("<H", head, 30), struct.unpack_from("<I", head, 48)
        if shift not in (9, 12):
            return COMPOUND_TYPE
        file.seek((first + 1) << shift)
        entries = file.read(min(ENTRIES_READ, 1 << shift))
    for at in range(0, len(entries) - 127, 128):
        (size,) = struct.unpack_from("<H", entries, at + 64)
        name = entries[at : at + max(0, min(size, 64) - 2)].decode("utf-16-le", "ignore")
        if name in STREAMS:
            return STREAMS[name]
    return COMPOUND_TYPE


def is_shown(mime_type: str) -> bool:
    """Whether browsers may show a file of this type instead of saving it."""
    return SHOWN.fullmatch(mime_type) is not None


def clean_name(name: str | None) -> str:
    """A file name without folders and control characters, cut but for its ending."""
    text = UNPRINTABLE.sub("", name or "").replace("\\", "/").rpartition("/")[2].strip()
    text = rules.composed(text.encode("utf-8", "ignore").decode())
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


class _Entry(NamedTuple):
    name: bytes
    method: int
    packed: int
    offset: int


def type_of(path: Path) -> str:
    """The type of a ZIP archive."""
    with path.open("rb") as file:
        try:
            return _found(file) or ARCHIVE
        except (struct.error, zlib.error, OSError, ValueError):  # damaged
            return ARCHIVE


def _found(file: BinaryIO) -> str | None:
    entries = {entry.name: entry for entry in reversed(list(_entries(file)))}
    first = entries.get(MIMETYPE)
    if first and first.offset == 0:
        kind = _content(file, first, LONGEST_TYPE).strip()
        if OF_MIMETYPE.fullmatch(kind):
            return kind.decode()
    if CONTENT_TYPES in entries:
        main = MAIN_PART.search(_content(file, entries[CONTENT_TYPES], MOST_CONTENT_TYPES))
        if main:
            office = f"application/{main[1].decode()}"
            return f"{office}.12" if office.endswith("macroEnabled") else office
    if b"AndroidManifest.xml" in entries:
        return ANDROID
    return JAR if b"META-INF/MANIFEST.MF" in entries else None


def _entries(file: BinaryIO) -> Iterator[_Entry]:
    size = file.seek(0, 2)
    file.seek(max(0, size - END_BYTES))
    end = file.read()
    at = end.rfind(END)
    if at < 0:
        return
    length, start = struct.unpack_from("<II", end, at + 12)
    if start >= size:  # ZIP64, for archives over 4 GiB: no kind of document
        return
    file.seek(start)
    directory, at = file.read(min(length, MOST_DIRECTORY)), 0
    while directory[at : at + 4] == ENTRY and at + 46 <= len(directory):
        method, packed = struct.unpack_from("<H8xI", directory, at + 10)
        names, extras, comments = struct.unpack_from("<HHH", directory, at + 28)
        (offset,) = struct.unpack_from("<I", directory, at + 42)
        yield _Entry(directory[at + 46 : at + 46 + names], method, packed, offset)
        at += 46 + names + extras + comments


def _content(file: BinaryIO, entry: _Entry, most: int) -> bytes:
    """The beginning of what an entry unpacks to."""
    file.seek(entry.offset)
    head = file.read(30)
    if not head.startswith(LOCAL):
        return b""
    file.seek(sum(struct.unpack_from("<HH", head, 26)), 1)
    packed = file.read(min(entry.packed, most))
    if entry.method == STORED:
        return packed
    return zlib.decompressobj(-15).decompress(packed, most) if entry.method == DEFLATED else b""
