"""What pages, authenticators and passkeys show of the product, or of an account with a brand."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from app import config, web
from app.accounts.models import SYSTEM_ACCOUNT_ID
from app.accounts.product import settings
from app.accounts.product.settings import Product
from app.outbound import mail

UNNAMED = "Atrium"
"""The sender of mails by default: users of a product know nothing of it."""
WHITE, BLACK = "#ffffff", "#000000"
LIGHTEST, DARKEST = "#f6f8fb", "#1b2838"
"""The backgrounds of pages that contrast least with dark text, and with light text."""
MIN_CONTRAST = 4.7
"""Of text and its background: WCAG 2.2 wants 4.5 (1.4.3)."""
MIN_CONTRAST_OF_WHITE = 3
"""From which on a button is darkened a little for white text, as people expect it."""


@dataclass(frozen=True)
class ShownFace:
    """The name, logo, colour and addresses that a page shows."""

    name: str
    logo: str | None = None
    """An address, of this service for a logo that was set as an image."""
    accent_color: str | None = None
    url: str | None = None
    support_email: str | None = None
    privacy_url: str | None = None
    terms_url: str | None = None


def of(account_id: str | None) -> ShownFace:
    """The face that users of an account see, or that of the product."""
    product = settings.load()
    own = settings.load_brand(account_id) if account_id else settings.Face()
    logo = own.logo or product.logo
    if logo and logo.startswith("data:"):
        query = f"?account={account_id}" if own.logo else ""
        logo = f"{web.PREFIX}/product/logo{query}"
    return ShownFace(
        own.name or product_name(product),
        logo,
        own.accent_color or product.accent_color,
        product.url,
        product.support_email or config.current().abuse_email,
        product.privacy_url,
        product.terms_url,
    )


def plain() -> ShownFace:
    """The face of pages that cannot read the settings."""
    return ShownFace(default_name())


def product_name(product: Product) -> str:
    """The name of the product; without one, that of the sender of mails, or the host name."""
    return product.name or default_name()


def default_name() -> str:
    """The name of a product that has none: that of the sender of mails, if the operator set it."""
    name = mail.service_name()
    host = urlsplit(config.current().base_url).hostname or ""
    return host if name in ("", UNNAMED) else name


def issuer(account_id: str, account_name: str) -> str:
    """The name of an account in authenticator apps: with the product's, of which it is a part."""
    name = of(account_id).name
    is_same = name == account_name or account_id == SYSTEM_ACCOUNT_ID
    return (name if is_same else f"{name} ({account_name})").replace(":", " ")[:60]


def stylesheet(accent_color: str) -> str:
    """The CSS of buttons and links in a color, whose contrast suffices on light and on dark."""
    on_accent = WHITE if contrast(accent_color, WHITE) >= MIN_CONTRAST_OF_WHITE else BLACK
    button = _readable(accent_color, on_accent, BLACK if on_accent == WHITE else WHITE)
    on_light = _readable(accent_color, LIGHTEST, BLACK)
    on_dark = _readable(accent_color, DARKEST, WHITE)
    return (
        f":root {{ --accent: {button}; --on-accent: {on_accent};"
        f" --accent-text: light-dark({on_light}, {on_dark}); }}\n"
    )


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colors (WCAG 2.2), from 1 to 21."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _readable(color: str, background: str, towards: str) -> str:
    """The color, mixed with black or white until it can be read on a background."""
    parts, target = _channels(color), _channels(towards)
    for share in range(0, 101, 5):
        mixed = [round(a + (b - a) * share / 100) for a, b in zip(parts, target, strict=True)]
        shown = "#" + "".join(f"{one:02x}" for one in mixed)
        if contrast(shown, background) >= MIN_CONTRAST:
            return shown
    return towards


def _luminance(color: str) -> float:
    linear = [
        one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4
        for one in (channel / 255 for channel in _channels(color))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _channels(color: str) -> list[int]:
    return [int(color[start : start + 2], 16) for start in (1, 3, 5)]
