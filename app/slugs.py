"""Account slugs and codes."""

from __future__ import annotations

import re
import unicodedata

CODE = re.compile(r"[A-Za-z]{2}[0-9]{4}")
SLUG = re.compile(r"[a-z][a-z0-9-]*")
SHORTEST_SLUG, LONGEST_SLUG = 3, 32
DESCRIBED = {
    "pattern": f"^{SLUG.pattern}$",
    "minLength": SHORTEST_SLUG,
    "maxLength": LONGEST_SLUG,
}
SYSTEM_SLUG = "system"
# With SERVICE_BASE_DOMAIN a slug is a host name: these belong to the service, or look like it.
RESERVED = frozenset(
    (
        *("abuse", "account", "accounts", "admin", "administrator", "api", "app", "apps"),
        *("assets", "auth", "autoconfig", "autodiscover", "billing", "cdn", "cloud"),
        *("console", "dashboard", "dev", "dns", "docs", "download", "email", "ftp", "git"),
        *("health", "help", "hostmaster", "imap", "internal", "intranet", "localhost"),
        *("login", "logout", "mail", "media", "metrics", "monitor", "mta-sts", "ns1", "ns2"),
        *("oauth", "official", "openid", "payment", "pop", "pop3", "portal", "postmaster"),
        *("proxy", "ready", "redirect", "register", "root", "saml", "scim", "secure"),
        *("security", "server", "service", "signin", "signup", "smtp", "sso", "staging"),
        *("static", "stats", "status", "superadmin", "support", "sysadmin", "vpn", "webhooks"),
        *("webmaster", "webmail", "www"),
    )
)


def slug_problem(slug: str) -> str | None:
    """Return why a text is not a valid slug, or None."""
    if not SHORTEST_SLUG <= len(slug) <= LONGEST_SLUG or not SLUG.fullmatch(slug):
        return (
            f"A slug has {SHORTEST_SLUG} to {LONGEST_SLUG} characters: lower-case letters, digits"
            " and hyphens, a letter first."
        )
    if CODE.fullmatch(slug):
        return "A slug may not look like an account code."
    return None


def new_slug_problem(slug: str) -> str | None:
    """Return why a new account may not have this slug, or None; existing accounts keep theirs."""
    if problem := slug_problem(slug):
        return problem
    if slug in RESERVED:
        return f"The slug {slug} is reserved for the service. Choose another."
    if slug[2:4] == "--":  # browsers decode host names such as xn--...
        return "A slug may not have hyphens as its third and fourth character."
    return None


def slug_from(name: str) -> str | None:
    """Derive a slug from a name; None if it has too few Latin letters.

    The slug may be a reserved one, which `new_slug_problem` refuses.
    """
    letters = unicodedata.normalize("NFKD", name.casefold())
    folded = "".join(letter for letter in letters if not unicodedata.combining(letter))
    slug = re.sub(r"[^a-z0-9]+", "-", folded).strip("-")[:LONGEST_SLUG].strip("-")
    return slug if len(slug) >= SHORTEST_SLUG and SLUG.fullmatch(slug) else None
