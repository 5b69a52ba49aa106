"""An extension of tests: prices, quotes, a page and a command."""

from __future__ import annotations

from typing import Any

from app.extend import (
    Caller,
    InvalidValues,
    PageRequest,
    Redirect,
    Refused,
    Schema,
    account_admin,
    anonymous,
    command,
    console_page,
    endpoint,
    example,
    fields,
    gettext,
    http,
    setting,
    signed_in,
    superadmin,
)
from app.extend.tables import Mapped, Table, Text, UniqueConstraint, mapped_column

RATE = setting("rate", float, default=1.5, help="what a unit costs")
TOKEN = setting("token", default="", help="signs quotes", secret=True)
_last: dict[str, Any] = {}


class Price(Table):
    """A price of an article."""

    __tablename__ = "prices"
    __table_args__ = (UniqueConstraint("account_id", "article"),)
    __hidden__ = ("note",)

    article: Mapped[str] = mapped_column(Text)
    amount: Mapped[float]
    note: Mapped[str | None] = mapped_column(Text)


class QuoteRequest(Schema):
    """What is to be quoted."""

    units = fields.Integer(1, 1000, required=True)
    ticket_id = fields.Id()


class Quote(Schema):
    """What it costs."""

    units = fields.Integer(1, 1000, required=True)
    total = fields.Float(required=True)
    by = fields.String(allow_none=True)


@endpoint("POST", "/quotes", body=QuoteRequest, answer=Quote, status=201)
def quote(caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
    """Quote a price."""
    if body["units"] == 13:
        raise Refused("units", code="unlucky", message="Take one more.")
    by = caller.user and caller.user.email
    return {"units": body["units"], "total": body["units"] * RATE.value, "by": by, "secret": "x"}


class Found(Schema):
    """The article of a price."""

    article = fields.Text(longest=50)
    limit = fields.Integer(1, 100, load_default=10)


class PriceView(Schema):
    """A price."""

    id = fields.Id(required=True)
    article = fields.String(required=True)
    amount = fields.Float(required=True)
    created_at = fields.Timestamp(required=True)


@example(article="nail", amount=2.5)
class NewPrice(Schema):
    """A new price."""

    article = fields.Text(longest=50, required=True)
    amount = fields.Float(required=True)


@endpoint("GET", "/prices", query=Found, answer=PriceView(many=True))
def list_prices(caller: Caller, body: None, *, query: dict[str, Any]) -> Any:
    """List the prices."""
    found = {"article": query["article"]} if "article" in query else {}
    return caller.table(Price).list(limit=query["limit"], **found)


@endpoint("POST", "/prices", body=NewPrice, answer=PriceView, status=201, access=account_admin)
def add_price(caller: Caller, body: dict[str, Any]) -> Any:
    """Add a price."""
    return caller.table(Price).create(**body, note="not for the log")


@endpoint("GET", "/prices/<uuid:price_id>", answer=PriceView)
def get_price(caller: Caller, body: None, *, price_id: str) -> Any:
    """Get a price."""
    return caller.table(Price).get(price_id)


@endpoint("PATCH", "/prices/<uuid:price_id>", body=NewPrice(partial=True), answer=PriceView)
def change_price(caller: Caller, body: dict[str, Any], *, price_id: str) -> Any:
    """Change a price."""
    return caller.table(Price).update(price_id, **body)


@endpoint("DELETE", "/prices/<uuid:price_id>", access=account_admin)
def remove_price(caller: Caller, body: None, *, price_id: str) -> None:
    """Remove a price."""
    caller.table(Price).delete(price_id)


@endpoint("POST", "/estimates", body=QuoteRequest, answer=Quote, access=signed_in(reads=True))
def estimate(caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
    """Estimate a price, which changes nothing."""
    return {"units": body["units"], "total": 0.0, "by": None}


@endpoint("GET", "/titles", answer=Schema.from_dict({"titles": fields.List(fields.String())}))
def titles(caller: Caller, body: None) -> dict[str, Any]:
    """List the titles of posts."""
    return {"titles": [one["title"] for one in caller.records("posts").list()["items"]]}


@endpoint("POST", "/entries", body=Schema.from_dict({"title": fields.Text()}), answer=Schema())
def add_many(caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
    """Create two posts, of which the second may be refused."""
    caller.records("posts").create({"title": body["title"]})
    caller.records("posts").create({"title": f"{body['title']} again"})
    if body["title"] == "too much":
        raise Refused("title", code="too_much", message="Less, please.")
    return {}


@endpoint("GET", "/all-titles", answer=Schema.from_dict({"titles": fields.List(fields.String())}))
def all_titles(caller: Caller, body: None) -> dict[str, Any]:
    """List the titles of posts that the rules hide, too."""
    with caller.as_operator("titles for everybody") as operator:
        found = operator.records("posts").list()["items"]
    return {"titles": [one["title"] for one in found]}


@endpoint("GET", "/writes")
def write_in_read(caller: Caller, body: None) -> None:
    """Write, although a GET must not."""
    caller.records("posts").create({"title": "written by a GET"})


@endpoint("GET", "/unfit", answer=Quote)
def answer_unfit(caller: Caller, body: None) -> dict[str, Any]:
    """Answer what does not fit."""
    return {"units": "secret of acme", "total": None}


@endpoint("GET", "/broken", answer=Quote)
def fail(caller: Caller, body: None) -> dict[str, Any]:
    """Fail."""
    raise ValueError("secret of acme")


@endpoint("GET", "/open", answer=Quote, access=anonymous)
def open_to_all(caller: Caller, body: None) -> dict[str, Any]:
    """Answer anybody."""
    return {"units": 1, "total": 1, "by": caller.kind}


@endpoint("GET", "/instance", access=superadmin(operator="accounts"))
def for_superadmins(caller: Caller, body: None) -> None:
    """Answer superadmins."""


@endpoint("POST", "/rates", body=Schema.from_dict({"url": fields.String()}), answer=Quote)
def fetch_rate(caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
    """Ask another service."""
    try:
        answer = http.post(body["url"], json={}, timeout=1)
    except http.HttpError as error:
        raise Refused("url", code="unreachable", message=str(error)) from error
    return {"units": 1, "total": answer.json()["rate"], "by": None}


@console_page("/prices", title="Prices", methods=("GET", "POST"))
def show_prices(caller: Caller, request: PageRequest) -> str | Redirect:
    """The prices, and a form for a new one."""
    prices = caller.table(Price)
    if request.method == "POST":
        article = request.form.get("article")
        if article == "gold":
            return request.redirect("/prices", gettext("Gold has no price."), error=True)
        if article == "lead":
            problem = {"field": "article", "code": "too_heavy", "message": "Lead is too heavy."}
            raise InvalidValues([problem])
        if article == "iron":
            raise Refused("article", code="too_hard", message="Iron is too hard.")
        prices.create(article=article, amount=float(request.form.get("amount")))
        return request.redirect("/prices", gettext("Price added."))
    return request.render("prices.html", prices=prices.list())


@console_page("/prices/<uuid:price_id>", title="Price")
def show_price(caller: Caller, request: PageRequest, *, price_id: str) -> str:
    """One price, by plain text, which is escaped."""
    return f"<b>{caller.table(Price).get(price_id)['article']}</b>"


@console_page("/reading", title="Reading", access=signed_in)
def show_reading(caller: Caller, request: PageRequest) -> str:
    """A page for all who open the console."""
    return f"{caller.user and caller.user.email}"


@command("price-list")
def price_list(article: str, *rest: str) -> str:
    """Print the words."""
    return f"{article} {len(rest)} at {RATE.value}"
