"""The records and people that a field may point to, for scripts that search while one types."""

from __future__ import annotations

from flask import request

from app.console.records import references
from app.console.records.listing import COLLECTION
from app.console.shell import scopes
from app.console.shell.access import USER
from app.console.shell.blueprint import page

MAX_TEXT_LENGTH = 100


@page(f"{COLLECTION}/options", role=USER, retry_stale=True)
def show_options(account_id: str, name: str) -> dict[str, object]:
    """Ids and labels of records that a text finds for `field`; none if it is no reference."""
    scope = scopes.collection_scope(account_id, name)
    target = scope.collection.followed(request.args.get("field", ""))
    text = request.args.get("text", "").replace("\0", "").strip()[:MAX_TEXT_LENGTH]
    hits = references.search(target, text, scope.by) if target else None
    return {"options": [{"id": id, "label": label} for id, label in hits or ()]}
