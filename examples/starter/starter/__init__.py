"""An extension of Atrium; this line becomes the description of its package."""

from __future__ import annotations

from typing import Any

from app.extend import Caller, Refused, Schema, before_create, endpoint, fields, signed_in

__version__ = "0.1.0"


@before_create("orders")
def check_title(caller: Caller, record: dict[str, Any]) -> None:
    """Store titles without blanks around them, and refuse empty ones."""
    record["title"] = (record.get("title") or "").strip()
    if not record["title"]:
        raise Refused("title", code="title_missing", message="Write a title.")


class Guest(Schema):
    name = fields.Text(longest=100, required=True)


class Greeting(Schema):
    text = fields.String()


@endpoint("POST", "/greetings", body=Guest, answer=Greeting, access=signed_in)
def greet(caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
    """Greet a guest."""
    place = caller.account.name if caller.account else ""
    return {"text": f"Welcome to {place}, {body['name']}!"}
