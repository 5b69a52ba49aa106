"""What a user may view of a record that has just changed: before the change, and after it."""

from __future__ import annotations

from app.auth.principal import Principal
from app.collections.access import Access
from app.collections.definition import Definition
from app.records.read import views
from app.records.store import Row, references


def access_to(definition: Definition, row: Row | None, by: Principal | None) -> Access | None:
    """What viewing opens of a row, stored or not; None where the user may not view it."""
    access = views.access_to_view(definition, by) if by else None
    if access is None or row is None:
        return None
    linked = references.foreseen(definition, row, access.follows)
    return access if access.allows({**row, **linked}) else None
