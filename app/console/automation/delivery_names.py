"""The names of the records that deliveries are about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from app.collections import definitions
from app.console.records import references
from app.console.shell.scopes import AccountScope
from app.webhooks import log
from app.webhooks.models import Webhook


def of_records(
    found: Sequence[log.Delivery], hooks: Mapping[str, Webhook], scope: AccountScope
) -> dict[str, str]:
    """The names, by id, of the records of deliveries whose payload the reader may see."""
    ids = defaultdict[str, list[str]](list)
    for one in found:
        if one.record_id and not one.hidden_by and one.webhook_id in hooks:
            ids[hooks[one.webhook_id].collection.lower()].append(one.record_id)
    names = dict[str, str]()
    for collection in definitions.get_all():
        names |= references.labels(collection, ids[collection.name.lower()], scope.by)
    return names
