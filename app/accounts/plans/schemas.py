"""Plans, and what an account has beside its plan, in requests and responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import marshmallow as ma

from app.accounts.usage.schemas import ChangedQuotas
from app.errors import InvalidValues, problem
from app.types import JSONMapping, JSONObject
from app.web import fields
from app.web.fields import doc
from app.web.schemas import Schema

EXAMPLE = {
    "free": {"quotas": {"records": {"hard": 1000}}, "flags": []},
    "pro": {"quotas": {"records": {"soft": 80_000, "hard": 100_000}}, "flags": ["sla"]},
}
FLAGS = "Names that expressions test as `@flag(name)`."


class PlanBody(Schema):
    """The limits and flags of a plan."""

    quotas = ma.fields.Nested(ChangedQuotas, **doc("Limits by meter, else the service's apply."))
    flags = ma.fields.List(fields.Text(longest=100), **doc(FLAGS))
    rename_from = fields.Text(longest=100, **doc("The present name of what gets this one."))
    removed = fields.StrictBoolean(**doc("Whether to remove it."))


class Plans(Schema):
    """All plans by name."""

    class Meta:
        """Names are free; the service checks them."""

        unknown = ma.INCLUDE


class OverridesBody(Schema):
    """What an account has beside its plan; what is absent stays."""

    quotas = ma.fields.Nested(ChangedQuotas, **doc("Limits by meter; null: those of the plan."))
    flags = ma.fields.Dict(
        keys=fields.Text(longest=100),
        values=fields.StrictBoolean(allow_none=True),
        **doc("true gives a flag, false takes it away, null leaves it to the plan."),
    )


def load(body: JSONMapping) -> JSONObject:
    """Validate plans by name. Raises InvalidValues with the places of all problems."""
    plans, problems = dict[str, object](), list[JSONObject]()
    for name, entry in body.items():
        try:
            plans[name] = PlanBody().load(entry)
        except ma.ValidationError as error:
            problems += _problems(error.messages, (name[:80],))
    if problems:
        raise InvalidValues(problems)
    return plans


def _problems(messages: Any, path: tuple[str, ...]) -> Iterator[JSONObject]:
    if isinstance(messages, dict):
        for name, inner in messages.items():
            yield from _problems(inner, path if name == "_schema" else (*path, str(name)[:80]))
    else:
        yield from (problem(".".join(path), "invalid_type", one) for one in messages)
