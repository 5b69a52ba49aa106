"""The operator's webhooks as an item of manifests, by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.auth.principal import Principal
from app.errors import InvalidValues, problem
from app.manifest.kinds import Single
from app.operator import webhooks
from app.types import JSONMapping, JSONObject
from app.webhooks.models import Webhook

Row = Mapping[str, Webhook]
REQUIRED = ("url", "types")


class OperatorWebhooks(Single):
    """The operator's webhooks; those without a key go by their id. Secrets are no part of it."""

    name = section = "operator_webhooks"
    properties, path = (), ("operator_webhooks",)

    def rows(self, account_ids: Sequence[str] | None = None) -> list[Row]:
        """Return all webhooks as the only row."""
        return [{one.key or one.id: one for one in webhooks.all_()}]

    def export(self, row: Row) -> JSONObject:
        return {key: _shown(one) for key, one in row.items()}

    def changed(self, row: Row, body: JSONMapping, by: Principal) -> list[str]:
        """Return the keys of the webhooks that differ. Raises InvalidValues."""
        problems, found = list[JSONObject](), list[str]()
        for key, given in body.items():
            present = _shown(row[key]) if key in row else {}
            wanted = {**present, **given}
            if given.get("removed"):
                found += [key] if key in row else []
                continue
            problems += [
                problem(f"{key}.{name}", "required", "A new webhook needs this.")
                for name in REQUIRED
                if name not in wanted
            ]
            problems += [
                {**one, "field": f"{key}.{one['field']}"}
                for one in webhooks.problems(given, present)
            ]
            if wanted != present:
                found.append(key)
        if problems:
            raise InvalidValues(problems)
        return found

    def changes(self, row: Row, body: JSONMapping) -> list[JSONObject]:
        """Return how each webhook changes."""
        before = self.export(row)
        return [
            {"operation": "change_property", "field": None, "property": key}
            | {"before": before.get(key)}
            | {"after": None if given.get("removed") else {**before.get(key, {}), **given}}
            for key, given in body.items()
        ]

    def undone(self, row: Row, body: JSONMapping) -> JSONObject:
        """Return the former webhooks; one that was removed gets another secret."""
        before = self.export(row)
        return {key: before.get(key, {"removed": True}) for key in body}

    def change(self, row: Row, body: JSONMapping, *, by: Principal) -> None:
        for key, given in body.items():
            if given.get("removed"):
                webhooks.delete(row[key].id, by=by)
            elif key in row:
                webhooks.change(row[key].id, given, by=by)
            else:
                webhooks.create({**given, "key": key}, by=by)


def _shown(webhook: Webhook) -> JSONObject:
    shown: JSONObject = {"url": webhook.url, "types": webhook.types, "is_active": webhook.enabled}
    return {**shown, "collections": webhook.collections or []}
