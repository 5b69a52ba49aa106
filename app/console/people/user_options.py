"""Users whom a text finds, for scripts that search while one types."""

from __future__ import annotations

from app.accounts import users as people
from app.console.shell import lists
from app.types import JSONObject

MAX_OPTIONS = 10


def search(account_id: str, text: str) -> list[JSONObject]:
    """Addresses and labels of users whose name or address has the text, by address."""
    text = text.replace("\0", "").strip()[: lists.MAX_INPUT_LENGTH]
    params = {"skip": 0, "limit": MAX_OPTIONS, "sort_by": "email", "sort_order": "asc"}
    if text:  # no index covers it: among the newest users
        after = people.cursor_at_offset(account_id, lists.MAX_SCANNED) or ""
        params |= {"search": text, "after": after}
    users, _ = people.page(account_id, params, max_total=0)
    return [
        {"id": user.email, "label": f"{user.email} ({user.name})" if user.name else user.email}
        for user in users
    ]
