"""Order numbers with a check digit, and prices by the service of a supplier."""

from __future__ import annotations

import secrets
from typing import Any
from urllib.parse import quote

from app.extend import (
    Caller,
    Conflict,
    Refused,
    Schema,
    before_create,
    before_update,
    endpoint,
    fields,
    http,
    setting,
    signed_in,
)

__version__ = "1.0.0"

DIGITS = 9
PRICES = setting("prices_url", help="the address of the supplier's price service")


def check_digit(digits: str) -> str:
    """Return the digit that completes a number, by the Luhn algorithm (ISO/IEC 7812-1)."""
    # From the right, every second digit counts twice, and the digits of that are added up.
    doubled = [int(one) * (2 - place % 2) for place, one in enumerate(reversed(digits))]
    return str(-sum(one // 10 + one % 10 for one in doubled) % 10)


@before_create("orders")
def number_order(caller: Caller, record: dict[str, Any]) -> None:
    """Give an order its number, whatever was sent. That it is unique, its field says."""
    digits = f"{secrets.randbelow(10**DIGITS):0{DIGITS}}"
    record["number"] = digits + check_digit(digits)


@before_update("orders")
def keep_number(caller: Caller, old: dict[str, Any], record: dict[str, Any]) -> None:
    """Refuse another number."""
    if record["number"] != old["number"]:
        raise Refused("number", code="number_fixed", message="An order keeps its number.")


class Item(Schema):
    article = fields.Text(shortest=1, longest=40, required=True)
    pieces = fields.Integer(1, 10_000, required=True)


class Price(Schema):
    cents = fields.Integer(0, 10**9)


@endpoint("POST", "/prices", body=Item, answer=Price, access=signed_in)
def get_price(caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
    """Ask the supplier for the price of some pieces of an article."""
    try:
        answer = http.get(
            f"{PRICES.value}/{quote(body['article'], safe='')}", trusted=True, timeout=2
        )
        if answer.status == 404:
            raise Refused("article", code="unknown_article", message="There is no such article.")
        return {"cents": int(answer.json()["cents"]) * body["pieces"]}
    except (http.HttpError, LookupError, TypeError, ValueError):
        raise Conflict("The supplier names no price. Try again later.") from None
