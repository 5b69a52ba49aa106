"""Files as current programs write them: each is accepted where it belongs, and nowhere else."""

from __future__ import annotations

import io
import struct
import time
import zipfile
from typing import Any

import pytest

from app.files import content
from tests.builders import Caller, Cast, make_collection
from tests.files.test_files import upload

pytestmark = pytest.mark.one_database
OPEN_XML = "application/vnd.openxmlformats-officedocument."
XLSX, DOCX = f"{OPEN_XML}spreadsheetml.sheet", f"{OPEN_XML}wordprocessingml.document"
PPTX = f"{OPEN_XML}presentationml.presentation"
ODF = "application/vnd.oasis.opendocument."
PARTS = {XLSX: "xl/workbook.xml", DOCX: "word/document.xml", PPTX: "ppt/presentation.xml"}


def send(caller: Caller, name: str, data: bytes) -> Any:
    """The answer to an upload whose name is sent as it is."""
    head = f'--x\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    body, kind = head.encode() + data + b"\r\n--x--\r\n", "multipart/form-data; boundary=x"
    return caller.post("files/upload", data=body, content_type=kind)


def zipped(entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, flags: int = 0) -> bytes:
    """An archive; with Microsoft's flags if wanted. A `mimetype` is stored."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, data in entries.items():
            kind = zipfile.ZIP_STORED if name == "mimetype" else method
            archive.writestr(name, data, kind)
    data = bytearray(target.getvalue())
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)) if flags else ():
        place = data.find(mark)
        while place >= 0:
            data[place + at] |= flags
            place = data.find(mark, place + 4)
    return bytes(data)


def content_types(main: str, part: str, *, rows: int = 0) -> bytes:
    """The list of a package's types; with the main part after so many others."""
    others = "".join(
        f'<Override PartName="/xl/worksheets/sheet{n}.xml" ContentType="{OPEN_XML}'
        f'spreadsheetml.worksheet+xml"/>'
        for n in range(rows)
    )
    return (
        '<?xml version="1.0" encoding="UTF-8" standalone="yes"?><Types xmlns="http://schemas.'
        'openxmlformats.org/package/2006/content-types"><Default Extension="xlsx" ContentType="'
        f'{XLSX}"/><Default Extension="xml" ContentType="application/xml"/>{others}'
        f'<Override PartName="/{part}" ContentType="{main}"/></Types>'
    ).encode()


def package(kind: str, *, first: bool = False, flags: int = 0, rows: int = 0) -> bytes:
    """An Office document; `[Content_Types].xml` comes first, as Microsoft writes it, or last."""
    part = PARTS[kind]
    types = {"[Content_Types].xml": content_types(f"{kind}.main+xml", part, rows=rows)}
    rest = {
        "_rels/.rels": b"<Relationships/>",
        "docProps/app.xml": b"<a/>" * 3000,
        "docProps/thumbnail.bin": bytes(range(256)) * 80,
        part: b"<main/>",
    }
    return zipped(types | rest if first else rest | types, flags=flags)


def typed(main: str) -> bytes:
    """A package whose main part has this type."""
    return zipped({"a.xml": b"<a/>", "[Content_Types].xml": content_types(main, "a.xml")})


def open_document(kind: str) -> bytes:
    """A document as odfpy and LibreOffice begin it."""
    return zipped({"mimetype": kind.encode(), "content.xml": b"<x/>", "META-INF/manifest.xml": b""})


ARCHIVES: dict[str, tuple[bytes, str]] = {
    **{
        f"{kind[-8:]} {layout}": (package(kind, **options), kind)
        for kind in PARTS
        for layout, options in {
            "of openpyxl, XlsxWriter and python-docx": {},
            "of Microsoft Office": {"first": True, "flags": 6},
            "of many sheets": {"rows": 3000},
        }.items()
        for options in [dict[str, Any](options)]  # type: ignore[call-overload]
    },
    "xlsm": (
        typed("application/vnd.ms-excel.sheet.macroEnabled.main+xml"),
        "application/vnd.ms-excel.sheet.macroEnabled.12",
    ),
    "xlsb": (
        typed("application/vnd.ms-excel.sheet.binary.macroEnabled.main"),
        "application/vnd.ms-excel.sheet.binary.macroEnabled.12",
    ),
    "docm": (
        typed("application/vnd.ms-word.document.macroEnabled.main+xml"),
        "application/vnd.ms-word.document.macroEnabled.12",
    ),
    "dotx": (
        typed(f"{OPEN_XML}wordprocessingml.template.main+xml"),
        f"{OPEN_XML}wordprocessingml.template",
    ),
    "ods": (open_document(f"{ODF}spreadsheet"), f"{ODF}spreadsheet"),
    "odt": (open_document(f"{ODF}text"), f"{ODF}text"),
    "ott": (open_document(f"{ODF}text-template"), f"{ODF}text-template"),
    "odp": (open_document(f"{ODF}presentation"), f"{ODF}presentation"),
    "epub": (open_document("application/epub+zip"), "application/epub+zip"),
    "jar": (zipped({"META-INF/MANIFEST.MF": b"x", "A.class": b"x"}), "application/java-archive"),
    "apk": (
        zipped({"META-INF/MANIFEST.MF": b"x", "AndroidManifest.xml": b"x"}),
        "application/vnd.android.package-archive",
    ),
    "zip": (zipped({"a.txt": b"x"}), "application/zip"),
    "empty zip": (zipped({}), "application/zip"),
    "another mimetype": (zipped({"mimetype": b"text/html", "a": b""}), "application/zip"),
    "mimetype later": (zipped({"a": b"", "mimetype": b"application/epub+zip"}), "application/zip"),
    "types of nothing": (zipped({"[Content_Types].xml": b"<Types/>"}), "application/zip"),
    "only a header": (b"PK\3\4" + b"\0" * 40, "application/zip"),
    "cut": (package(XLSX)[:-30], "application/zip"),
}


def test_archive_file_type_is_detected_from_directory(cast: Cast) -> None:
    found = {
        name: upload(cast.alice, data, "a")["mime_type"] for name, (data, _) in ARCHIVES.items()
    }
    assert found == {name: expected for name, (_, expected) in ARCHIVES.items()}


def test_office_document_is_accepted_only_by_its_field_type(cast: Cast) -> None:
    fields = {"sheet": XLSX, "text": DOCX, "slides": PPTX, "odt": f"{ODF}text"}
    schema = [
        {"name": name, "type": "file", "options": {"mime_types": [kind]}}
        for name, kind in fields.items()
    ]
    make_collection(cast.root, schema=schema)
    files = {kind: package(kind) for kind in PARTS} | {f"{ODF}text": open_document(f"{ODF}text")}
    for name, kind in fields.items():
        for other, data in files.items():
            answer = cast.alice.post("records/posts", data={name: (io.BytesIO(data), "a.xlsx")})
            assert answer.status_code == (201 if other == kind else 400), (name, other)


@pytest.mark.long
def test_archive_file_type_detection_has_bounded_cost(cast: Cast) -> None:
    bomb = zipped({"[Content_Types].xml": b" " * 300_000_000, "mimetype": b"x"})
    many = zipped({str(n): b"" for n in range(60_000)})
    offsets = bytearray(package(XLSX))
    place = offsets.rindex(b"PK\x01\x02")
    struct.pack_into("<I", offsets, place + 42, 2**32 - 1)
    for data in (bomb, many, bytes(offsets)):
        began = time.thread_time()
        answer = send(cast.alice, "a.xlsx", data)
        assert answer.json["file"]["mime_type"] == "application/zip"
        assert time.thread_time() - began < 1.5


RSS = b'<?xml version="1.0"?><rss version="2.0"><channel><title>x</title></channel></rss>'
ATOM = b'<?xml version="1.0"?>\n<feed xmlns="http://www.w3.org/2005/Atom"><title>x</title></feed>'
PAGE = b"<!doctype html><html><body><svg></svg></body></html>"
TEXTS = [
    (
        "a.json",
        b'{"body": "<p>see <a href=\\"https://e.example\\">here</a></p>"}',
        "application/json",
    ),
    ("a.csv", b'id,body\n1,"<div class=""x"">hi</div>"\n', "text/csv"),
    ("icons.csv", b'id,icon\n1,"<svg></svg>"\n', "text/csv"),
    ("icons.csv", b"<b>id</b>,icon\n", "text/csv"),
    ("notes.md", b'# T\n\n<img src="x.png">\n', "text/markdown"),
    ("README.md", b'<!-- toc -->\n<p align="center"><img src="x"></p>\n', "text/markdown"),
    ("README.md", b"<details><summary>x</summary></details>\n", "text/markdown"),
    ("a.yaml", b"a: <script>alert(1)</script>\n", "application/yaml"),
    ("a.log", b"12:00 GET <html> <svg > done\n", "text/plain"),
    ("a.txt", b"<john@example.com> wrote\n", "text/plain"),
    ("a.txt", b"a <- b\n< 3 and > 2", "text/plain"),
    ("feed.xml", RSS, "application/xml"),
    ("feed.xml", ATOM, "application/xml"),
    ("a.xml", b"<note><svg></svg><html></html></note>", "application/xml"),
    ("a.xml", b'<!DOCTYPE note SYSTEM "n.dtd"><note/>', "application/xml"),
    ("page.html", PAGE, "text/html"),
    ("a.md", PAGE, "text/html"),
    ("a.csv", b"\xef\xbb\xbf \n<!-- x --><HTML>", "text/html"),
    ("a.svg", b"<!-- x -->\n<svg xmlns='x'/>", "image/svg+xml"),
    (
        "a.txt",
        b'<?xml version="1.0"?><?xml-a href="a"?><!--x--><svg:svg/>',
        "image/svg+xml",
    ),
    ("a.txt", b'<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "x"><svg></svg>', "image/svg+xml"),
    ("a.txt", b"<script>alert(1)</script>", "text/html"),
    ("a.txt", b"<p>x</p><svg></svg>", "text/html"),
    ("a.txt", b"<!--" * 2000, "text/plain"),
    ("a.txt", "a\nMüller\n".encode("cp1252"), "text/plain"),
    ("a.csv", "a\nMüller;€\n".encode("cp1252"), "text/csv"),
    ("a.txt", "Привет, мир\n".encode("cp1251"), "text/plain"),
    ("a.txt", "日本語のテキスト\n".encode("shift_jis"), "text/plain"),
    ("a.txt", "BMW für alle\n".encode("latin-1"), "text/plain"),
    ("a.txt", "hello".encode("utf-16"), "text/plain"),
    ("a.csv", b"\xfe\xff" + "a,ü\n".encode("utf-16-be"), "text/csv"),
    ("a.csv", "a,ü\n".encode("utf-8-sig"), "text/csv"),
    ("a.txt", "<html><script>x</script>".encode("utf-16"), "text/html"),
    ("a.txt", b"\xff\xfe\0\0\1\0", "application/octet-stream"),
    ("a.txt", ("é" * 5000).encode(), "text/plain"),
    ("a.txt", b"x" + ("é" * 5000).encode(), "text/plain"),
]


def test_text_file_type_is_markup_only_by_its_beginning(cast: Cast) -> None:
    found = [upload(cast.alice, data, name)["mime_type"] for name, data, _ in TEXTS]
    wrong = [(*text, kind) for text, kind in zip(TEXTS, found, strict=True) if text[2] != kind]
    assert wrong == []


def test_file_type_of_html_and_icon_table_is_not_image(cast: Cast) -> None:
    schema = [
        {"name": "image", "type": "file", "options": {"mime_types": ["image/*"]}},
        {"name": "table", "type": "file", "options": {"mime_types": ["text/csv", "text/plain"]}},
    ]
    make_collection(cast.root, schema=schema)
    for name, data, filename, status in (
        ("image", PAGE, "a.svg", 400),
        ("image", b'id,icon\n1,"<svg></svg>"\n', "a.csv", 400),
        ("table", b'id,icon\n1,"<svg></svg>"\n', "a.csv", 201),
        ("table", "a\nMüller\n".encode("cp1252"), "win1252.csv", 201),
        ("table", "hello".encode("utf-16"), "utf16.txt", 201),
        ("table", PAGE, "a.csv", 400),
    ):
        answer = cast.alice.post("records/posts", data={name: (io.BytesIO(data), filename)})
        assert answer.status_code == status, (name, filename, answer.text)


def box(*brands: bytes) -> bytes:
    """The beginning of an ISO base media file."""
    names = brands[0] + b"\0\0\0\0" + b"".join(brands[1:])
    return struct.pack(">I", 8 + len(names)) + b"ftyp" + names + b"\0\0\0\x08mdat" + b"\0" * 40


def ogg(codec: bytes) -> bytes:
    """The first page of an Ogg file."""
    return b"OggS\0\2" + b"\0" * 20 + b"\1" + bytes([len(codec) + 8]) + codec + b"\0" * 40


def compound(stream: str) -> bytes:
    """A compound file with this stream, as earlier Office programs write it."""
    head = bytearray(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1".ljust(512, b"\0"))
    struct.pack_into("<H", head, 30, 9)
    struct.pack_into("<I", head, 48, 1)
    entries = b""
    for name in ("Root Entry", stream):
        text = name.encode("utf-16-le")
        entries += text.ljust(64, b"\0") + struct.pack("<H", len(text) + 2) + b"\0" * 62
    return bytes(head) + b"\0" * 512 + entries.ljust(512, b"\0")


JPEG_2000 = b"\0\0\0\x0cjP  \r\n\x87\n"
MEDIA = {
    "iPhone memo": (box(b"M4A ", b"M4A ", b"mp42", b"isom"), "audio/mp4"),
    "audio book": (box(b"M4B ", b"isom"), "audio/mp4"),
    "audio of ffmpeg": (box(b"mp42", b"M4A ", b"isom"), "audio/mp4"),
    "video of iTunes": (box(b"M4V ", b"M4V ", b"M4A ", b"mp42"), "video/mp4"),
    "video": (box(b"isom", b"isom", b"avc1", b"mp41"), "video/mp4"),
    "movie": (box(b"qt  ", b"qt  "), "video/quicktime"),
    "telephone": (box(b"3gp4", b"isom", b"3gp4"), "video/3gpp"),
    "iPhone photo": (box(b"heic", b"mif1", b"heic"), "image/heic"),
    "photo of Samsung": (box(b"mif1", b"mif1", b"heic"), "image/heic"),
    "heif": (box(b"mif1", b"mif1", b"miaf"), "image/heif"),
    "burst": (box(b"msf1", b"msf1", b"hevc"), "image/heic-sequence"),
    "avif": (box(b"avif", b"mif1", b"miaf"), "image/avif"),
    "avif of mif1": (box(b"mif1", b"avif", b"miaf"), "image/avif"),
    "jp2": (JPEG_2000 + box(b"jp2 ", b"jp2 "), "image/jp2"),
    "jpx": (JPEG_2000 + box(b"jpx ", b"jpx "), "image/jpx"),
    "mj2": (JPEG_2000 + box(b"mjp2", b"mjp2"), "video/mj2"),
    "codestream": (b"\xff\x4f\xff\x51\0\x2f" + b"\0" * 40, "image/j2c"),
    "vorbis": (ogg(b"\x01vorbis"), "audio/ogg"),
    "opus": (ogg(b"OpusHead"), "audio/ogg"),
    "flac in ogg": (ogg(b"\x7fFLAC"), "audio/ogg"),
    "theora": (ogg(b"\x80theora"), "video/ogg"),
    "other ogg": (ogg(b"CELT    "), "application/ogg"),
    "cut brand": (b"\0\0\0\x14ftyp", "video/mp4"),
    "bmp": (b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0" + b"\0" * 40, "image/bmp"),
    "gzip": (b"\x1f\x8b\x08\0" + b"\0" * 20, "application/gzip"),
    "doc": (compound("WordDocument"), "application/msword"),
    "xls": (compound("Workbook"), "application/vnd.ms-excel"),
    "ppt": (compound("PowerPoint Document"), "application/vnd.ms-powerpoint"),
    "other compound file": (compound("EncryptedPackage"), "application/x-ole-storage"),
    "cut compound file": (compound("Workbook")[:100], "application/x-ole-storage"),
}


def test_media_file_type_is_detected_from_brand_and_codec(cast: Cast) -> None:
    found = {name: upload(cast.alice, data, "a")["mime_type"] for name, (data, _) in MEDIA.items()}
    assert found == {name: expected for name, (_, expected) in MEDIA.items()}
    shown = {kind for kind in found.values() if content.is_shown(kind)}
    assert shown == {
        one for one in found.values() if one.startswith(("image/", "audio/", "video/"))
    }


NAMES = [
    (r"C:\temp\x.txt", "x.txt"),
    (r"C:\\temp\\x.txt", "x.txt"),
    (r"\\server\share\new\name.txt", "name.txt"),
    (r"..\..\x.txt", "x.txt"),
    (r"a\"b\".txt", 'a"b".txt'),
    ("a/b/c.txt", "c.txt"),
]


def test_file_name_loses_its_folders(cast: Cast) -> None:
    for sent, stored in NAMES:
        answer = send(cast.alice, sent, b"hi")
        assert (answer.status_code, answer.json["file"]["name"]) == (201, stored)


RANGES = [
    (2560, "bytes=-10", 206, "bytes 2550-2559/2560"),
    (2560, "bytes=-2560", 206, "bytes 0-2559/2560"),
    (2560, "bytes=-2561", 206, "bytes 0-2559/2560"),
    (2560, "bytes=-65536", 206, "bytes 0-2559/2560"),
    (2560, f"bytes=-{10**18}", 206, "bytes 0-2559/2560"),
    (2560, "bytes=2560-", 416, "bytes */2560"),
    (2560, "bytes=-10,-20", 200, None),
    (0, "bytes=-10", 200, None),
    (0, "bytes=0-", 416, "bytes */0"),
]


def test_range_suffix_longer_than_file_is_whole_file(cast: Cast) -> None:
    files = {size: upload(cast.alice, b"\0" * size, "a.bin")["id"] for size in (2560, 0)}
    for size, wanted, status, sent in RANGES:
        answer = cast.alice.get(f"files/{files[size]}", headers={"Range": wanted})
        shown = (answer.status_code, answer.headers.get("Content-Range"))
        assert shown == (status, sent), wanted
