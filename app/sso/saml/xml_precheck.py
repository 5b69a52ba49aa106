"""Checks external documents before any XML parser sees them.

Refuses document types (entities, bombs), comments and CDATA (they split texts), encodings other
than UTF-8 (which would hide all that), and large documents. Metadata, which admins paste as the
provider wrote it, may contain comments: they are removed first.
"""

from __future__ import annotations

import re

ENCODING = re.compile(rb"""\A\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
DECLARATION = re.compile(rb"\A\s*<\?xml[^>]{0,200}\?>")
COMMENT = re.compile(rb"<!--(?:(?!--).)*-->", re.DOTALL)
ALLOWED_ENCODINGS = (b"utf-8", b"us-ascii", b"ascii")
BOM = b"\xef\xbb\xbf"


class UnsafeXml(ValueError):
    """Raised for a document that no parser should see, with the reason."""


def sanitize(raw: bytes, max_bytes: int, *, strip_comments: bool = False) -> bytes:
    """Return a safe document, optionally after stripping comments. Raises UnsafeXml."""
    if len(raw) > max_bytes:
        raise UnsafeXml(f"The document has more than {max_bytes} bytes.")
    raw = raw.removeprefix(BOM)
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise UnsafeXml("The document is not in UTF-8.") from None
    declared = ENCODING.match(raw)
    if declared and declared[1].lower() not in ALLOWED_ENCODINGS:
        raise UnsafeXml("The document is not in UTF-8.")
    rest = DECLARATION.sub(b"", raw, count=1)
    if strip_comments:  # before the checks
        rest = COMMENT.sub(b"", rest)
    if b"<!" in rest:
        raise UnsafeXml("The document has a document type, a comment or CDATA.")
    if b"<?" in rest:
        raise UnsafeXml("The document has processing instructions.")
    if b"\0" in raw or not rest.strip():
        raise UnsafeXml("The document is empty.")
    return rest
