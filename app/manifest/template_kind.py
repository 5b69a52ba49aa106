"""Account templates as an item of manifests, and all items that an instance has once."""

from __future__ import annotations

from collections.abc import Sequence

from app.auth.principal import Principal
from app.errors import InvalidValues
from app.manifest import kinds, templates
from app.manifest.kinds import Single
from app.manifest.operator_kind import OperatorWebhooks
from app.manifest.templates import Templates
from app.types import JSONMapping, JSONObject


class AccountTemplates(Single):
    """What new accounts have from the start, by the name of the template."""

    name = section = "account_templates"
    properties, path = (), ("account_templates",)

    def rows(self, account_ids: Sequence[str] | None = None) -> list[Templates]:
        """Return all templates as the only row."""
        return [templates.load()]

    def export(self, row: Templates) -> JSONObject:
        return {name: templates.shown(one) for name, one in row.items()}

    def changed(self, row: Templates, body: JSONMapping, by: Principal) -> list[str]:
        """Return the names of the templates that differ. Raises InvalidValues."""
        after, problems = templates.compare(body, row)
        if problems:
            raise InvalidValues(problems)
        return [name for name in body if after.get(name) != row.get(name)]

    def changes(self, row: Templates, body: JSONMapping) -> list[JSONObject]:
        """Return how each template changes."""
        before, after = self.export(row), templates.compare(body, row)[0]
        return [
            {"operation": "change_property", "field": None, "property": name}
            | {"before": before.get(name)}
            | {"after": templates.shown(after[name]) if name in after else None}
            for name in body
        ]

    def undone(self, row: Templates, body: JSONMapping) -> JSONObject:
        """Return the former templates, as later versions."""
        return {
            name: {**templates.shown(row[name]), "version": given.get("version", 0) + 1}
            if name in row and not given.get("removed")
            else templates.shown(row[name])
            if name in row
            else {"removed": True}
            for name, given in body.items()
        }

    def change(self, row: Templates, body: JSONMapping, *, by: Principal) -> None:
        templates.change(body, by=by)


SINGLES: Sequence[Single] = (*kinds.SINGLES, AccountTemplates(), OperatorWebhooks())
