"""Logos: an https address, or a PNG or SVG as a data address, without anything that runs."""

from __future__ import annotations

import base64
import binascii
import re
from io import BytesIO

from app.accounts import tenants

MAX_BYTES, MAX_SIDE = 256 * 2**10, 4096
LONGEST = MAX_BYTES * 4 // 3 + 100
DATA = re.compile(r"data:(image/png|image/svg\+xml);base64,([A-Za-z0-9+/=]+)")
ORIGIN = re.compile(r"(https://[\w.-]+(?::\d+)?)(?:[/?].*)?", re.ASCII)
NOT_A_LOGO = (
    "Must be an https address, or a PNG or SVG image as a data address:"
    " data:image/png;base64,... of at most 256 KiB."
)
ACTIVE = "The SVG must be a drawing alone: no scripts, events, styles with addresses, or links."
POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""Of a logo that is opened as a page."""
SVG = "{http://www.w3.org/2000/svg}"
# What runs, loads or embeds; all else of SVG draws.
ACTIVE_ELEMENTS = {"script", "foreignobject", "iframe", "a", "image", "feimage", "use", "style"}
ACTIVE_ELEMENTS |= {"animate", "animatemotion", "animatetransform", "set", "handler", "listener"}


def problem_of(logo: str) -> str | None:
    """What is wrong with a logo, or None."""
    if logo.startswith("https://"):
        return None if tenants.is_safe_url(logo) and origin_of(logo) else NOT_A_LOGO
    found = decode(logo)
    if found is None:
        return NOT_A_LOGO
    kind, content = found
    if kind == "image/png":
        from PIL import Image

        try:
            with Image.open(BytesIO(content), formats=("PNG",)) as image:
                image.verify()
                return None if max(image.size) <= MAX_SIDE else f"At most {MAX_SIDE} pixels wide."
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            return NOT_A_LOGO
    return _svg_problem(content)


def origin_of(logo: str) -> str | None:
    """The origin of a logo's address, as policies of pages may name it; None for other logos."""
    # Not what a policy reads as its next directive or as any host.
    match = ORIGIN.fullmatch(logo)
    return match[1] if match else None


def decode(logo: str) -> tuple[str, bytes] | None:
    """The type and content of a data address; None for what is none of a logo."""
    match = DATA.fullmatch(logo)
    if match is None or len(logo) > LONGEST:
        return None
    try:
        content = base64.b64decode(match[2], validate=True)
    except binascii.Error:
        return None
    return (match[1], content) if 0 < len(content) <= MAX_BYTES else None


def _svg_problem(content: bytes) -> str | None:
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)
    try:
        root = etree.fromstring(content, parser)
    except (etree.XMLSyntaxError, ValueError):
        return NOT_A_LOGO
    if root.tag != f"{SVG}svg":
        return NOT_A_LOGO
    around = (*root.itersiblings(), *root.itersiblings(preceding=True))
    if root.getroottree().docinfo.internalDTD is not None or any(
        node.tag is not etree.Comment for node in around
    ):
        return ACTIVE
    for element in root.iter():
        # Comments pass; processing instructions and entities do not.
        if element.tag is etree.Comment:
            continue
        if not isinstance(element.tag, str) or not element.tag.startswith(SVG):
            return ACTIVE
        if element.tag.removeprefix(SVG).lower() in ACTIVE_ELEMENTS:
            return ACTIVE
        for name, value in element.attrib.items():
            local = etree.QName(name).localname.lower()
            # A gradient may extend another of the same drawing.
            is_address = local in ("href", "src") and not value.strip().startswith("#")
            loads = re.search(
                r"url\((?!\s*['\"]?#)|image(-set)?\(|src\(|expression|@import|\\",
                value,
                re.IGNORECASE,
            )
            if (
                local.startswith("on")
                or local == "base"
                or is_address
                or loads
                or "script:" in value.lower()
            ):
                return ACTIVE
    return None
