"""How the API shows whoever acts."""

from __future__ import annotations

import marshmallow as ma

from app.context.actor import ActorKind
from app.web import fields
from app.web.fields import doc
from app.web.schemas import View

KINDS = tuple(kind.value for kind in ActorKind)
UNKNOWN = "null in entries of `digest_version` 1, which do not say."


class NamedActor(View):
    """What acted: the user of `user_id`, or something on the user's behalf."""

    kind = fields.Choice(KINDS)
    id = ma.fields.String(**doc("That of the user, key, workflow or import."))
    name = ma.fields.String(allow_none=True, **doc("null if erased."))


def actor_field() -> ma.fields.Nested:
    """The field `actor` of an entry."""
    return ma.fields.Nested(NamedActor, allow_none=True, **doc(f"What acted; {UNKNOWN}"))
