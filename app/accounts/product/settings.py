"""What the product is called, looks like, and where its own pages are: a setting of the instance.

Accounts may have a brand of their own where it says so. Links of the product may lead anywhere, as
the operator sets them; those of an account lead to addresses of its `allowed_redirect_uris`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import sqlalchemy as sa

from app import db
from app.accounts import service as accounts
from app.accounts import tenants
from app.accounts.models import Account, InstanceSetting
from app.accounts.product import images
from app.accounts.product.models import AccountBrand
from app.errors import Forbidden, InvalidValues, problem
from app.types import JSONMapping, JSONObject

NAME = "product"
COLOR = re.compile(r"#[0-9a-fA-F]{6}")
PLACEHOLDER = re.compile(r"\{(\w*)\}")
PLACEHOLDERS = re.compile(r"(\w+=)?\{\w+\}(&\w+=\{\w+\})*")
"""Of a fragment; the name of the first may be missing."""
BRANDING_OFF = "Accounts have no brand of their own here: the operator has not turned that on."
WITHOUT_PLACEHOLDER = "Must contain {token}, which the mail replaces."
NOT_LISTED = "Must be on the account's allowed_redirect_uris, without the token, or a product link."


class LinkKind(StrEnum):
    """What a page of the product is for; mails lead to it."""

    VERIFY_EMAIL = "verify_email"
    RESET_PASSWORD = "reset_password"  # noqa: S105
    INVITATION = "invitation"
    MAGIC_LINK = "magic_link"
    EMAIL_CHANGE = "email_change"
    SIGN_IN = "sign_in"


@dataclass(frozen=True)
class Face:
    """The name, logo, colour and links of the product or of an account."""

    name: str | None = None
    logo: str | None = None
    accent_color: str | None = None
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Product(Face):
    """The product, as the operator describes it."""

    url: str | None = None
    support_email: str | None = None
    privacy_url: str | None = None
    terms_url: str | None = None
    accounts_may_brand: bool = False


def load() -> Product:
    """Return the product as it is stored."""
    query = sa.select(InstanceSetting.value).where(InstanceSetting.id == NAME)
    return Product(**db.db.session.scalar(query) or {})


def change(body: JSONMapping) -> Product:
    """Change the product; what is absent stays. Raises InvalidValues with all problems."""
    check(body)
    with db.transaction() as session:
        query = sa.select(InstanceSetting).where(InstanceSetting.id == NAME).with_for_update()
        row = session.scalars(query.execution_options(populate_existing=True)).one()
        value = merged(row.value, body)
        if value != row.value:
            row.value, row.version = value, row.version + 1
        session.flush()
        return Product(**value)


def changes_links(body: JSONMapping) -> bool:
    """Whether a body changes where mails lead: whoever owns those pages receives the tokens."""
    links = load().links
    changed: bool = merged({"links": links}, body)["links"] != links
    return changed


def merged(stored: JSONMapping, body: JSONMapping) -> JSONObject:
    """The stored settings with those of a body; a null or empty link or value is taken away."""
    links = {**stored.get("links", {}), **body.get("links", {})}
    value = {**stored, **body, "links": {kind: link for kind, link in links.items() if link}}
    return {name: one for name, one in value.items() if one not in (None, "")}


def check(body: JSONMapping) -> None:
    """Check new settings of the product. Raises InvalidValues with all problems."""
    problems = [*_face_problems(body), *_link_problems(body)]
    for name in ("url", "privacy_url", "terms_url"):
        if body.get(name) is not None and not tenants.is_safe_url(body[name]):
            problems.append(problem(name, "invalid_url", "Must be an http or https address."))
    if body.get("support_email") is not None and (
        wrong := accounts.email_problem(body["support_email"], "support_email")
    ):
        problems.append(wrong)
    if problems:
        raise InvalidValues(problems)


def may_brand(account_id: str) -> bool:
    """Whether an account may have a face and texts of its own: as set for it, else for all."""
    own = sa.select(Account.may_brand).where(Account.id == account_id).scalar_subquery()
    query = sa.select(InstanceSetting.value, own).where(InstanceSetting.id == NAME)
    value, may = db.db.session.execute(query).one()
    return bool(Product(**value).accounts_may_brand if may is None else may)


def load_brand(account_id: str) -> Face:
    """Return the brand of an account, empty where it may have none or has set none."""
    if not may_brand(account_id):
        return Face()
    row = _brand(account_id)
    return Face(row.name, row.logo, row.accent_color, row.links) if row else Face()


def require_branding(account_id: str) -> None:
    """Raise Forbidden `branding_off` where an account may have no brand of its own."""
    if not may_brand(account_id):
        raise Forbidden(BRANDING_OFF, error="branding_off")


def check_brand(body: JSONMapping, listed: Sequence[str]) -> None:
    """Check a brand of an account with these redirect URIs. Raises InvalidValues."""
    problems = [*_face_problems(body), *_link_problems(body)]
    refused = {one["field"] for one in problems}
    for kind, link in (body.get("links") or {}).items():
        field = f"links.{kind}"
        if link and field not in refused and not is_listed(without_placeholders(link), listed):
            problems.append(problem(field, "invalid_option", NOT_LISTED))
    if problems:
        raise InvalidValues(problems)


def change_brand(account_id: str, body: JSONMapping, *, by_operator: bool = False) -> Face:
    """Change an account's brand; what is absent stays. Raises Forbidden or InvalidValues.

    The operator sets one also where accounts may have none; it is shown once they may.
    """
    if not by_operator:
        require_branding(account_id)
    with db.transaction() as session:
        account = tenants.get_for_update(account_id)
        check_brand(body, account.settings.get("allowed_redirect_uris", ()))
        row = _brand(account_id)
        if row is None:
            row = AccountBrand(account_id=account_id, links={})
            session.add(row)
        links = {**row.links, **body.get("links", {})}
        row.links = {kind: link for kind, link in links.items() if link}
        for name in ("name", "logo", "accent_color"):
            if name in body:
                setattr(row, name, body[name] or None)
        session.flush()
        return Face(row.name, row.logo, row.accent_color, row.links)


def _brand(account_id: str) -> AccountBrand | None:
    query = sa.select(AccountBrand).where(AccountBrand.account_id == account_id)
    return db.db.session.scalar(query)


def is_listed(uri: str, listed: Sequence[str]) -> bool:
    """Whether an address is one of a list, or that of a link of the product."""
    return uri in listed or uri in {without_placeholders(one) for one in load().links.values()}


def without_placeholders(link: str) -> str:
    """The address of a link, without the parameters of its query that are placeholders."""
    parts = urlsplit(link)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    query = urlencode([pair for pair in pairs if not PLACEHOLDER.fullmatch(pair[1])])
    # A page may read anything else of it as where to go.
    fragment = "" if PLACEHOLDERS.fullmatch(parts.fragment) else parts.fragment
    return urlunsplit(parts._replace(query=query, fragment=fragment))


def _face_problems(body: JSONMapping) -> Iterator[JSONObject]:
    if body.get("name") and (wrong := accounts.label_problem(body["name"])):
        yield wrong
    if body.get("logo") and (message := images.problem_of(body["logo"])):
        yield problem("logo", "invalid_image", message)
    if body.get("accent_color") and not COLOR.fullmatch(body["accent_color"]):
        yield problem("accent_color", "pattern_mismatch", "Must be a color such as #0b5fff.")


def _link_problems(body: JSONMapping) -> Iterator[JSONObject]:
    for kind, link in body.get("links", {}).items():
        field = f"links.{kind}"
        if kind not in [*LinkKind]:
            yield problem(field, "invalid_option", f"Choose one of {', '.join(LinkKind)}.")
        elif link:
            names = {match[1] for match in PLACEHOLDER.finditer(link)}
            address = PLACEHOLDER.sub("x", link).replace("#", "?", 1)
            if not tenants.is_safe_url(address) or names - {"token", "account"}:
                message = "Must be an http or https address with {token} and {account} at most."
                yield problem(field, "invalid_url", message)
            elif kind != LinkKind.SIGN_IN and "token" not in names:
                yield problem(field, "invalid_url", WITHOUT_PLACEHOLDER)
