"""What is looked at before any XML parser sees a document from outside.

No document type (entities, bombs), no comments and no CDATA (they cut texts in two), no encoding
but UTF-8 (in which all of that would look otherwise), no more than so many bytes. Metadata, which
an admin pastes as the provider wrote it, may have comments: they are taken out first.
"""

from __future__ import annotations

import re

ENCODING = re.compile(rb"""\A\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
DECLARATION = re.compile(rb"\A\s*<\?xml[^>]{0,200}\?>")
COMMENT = re.compile(rb"<!--(?:(?!--).)*-->", re.DOTALL)
ALLOWED_ENCODINGS = (b"utf-8", b"us-ascii", b"ascii")
BOM = b"\xef\xbb\xbf"


class UnsafeXml(ValueError):
    """A document that no parser should see; the text says why."""


def sanitize(raw: bytes, longest: int, *, commented: bool = False) -> bytes:
    """The document, if it is plain, without its comments where it may have some. Raises Hostile."""
    if len(raw) > longest:
        raise UnsafeXml(f"The document has more than {longest} bytes.")
    raw = raw.removeprefix(BOM)
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise UnsafeXml("The document is not in UTF-8.") from None
    named = ENCODING.match(raw)
    if named and named[1].lower() not in ALLOWED_ENCODINGS:
        raise UnsafeXml("The document is not in UTF-8.")
    rest = DECLARATION.sub(b"", raw, count=1)
    if commented:  # before the checks, which so look at what is left
        rest = COMMENT.sub(b"", rest)
    if b"<!" in rest:
        raise UnsafeXml("The document has a document type, a comment or CDATA.")
    if b"<?" in rest:
        raise UnsafeXml("The document has processing instructions.")
    if b"\0" in raw or not rest.strip():
        raise UnsafeXml("The document is empty.")
    return rest
