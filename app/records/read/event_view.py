"""What a user may view of a record that has just changed, before and after the change."""

from __future__ import annotations

from app.auth.principal import Principal
from app.collections.access import Access
from app.collections.definition import Definition
from app.records.read import views
from app.records.store import Row, references


def access_of_row(definition: Definition, row: Row | None, by: Principal | None) -> Access | None:
    """The user's access to view a row, stored or not; None if it is not visible."""
    access = views.view_access(definition, by) if by else None
    if access is None or row is None:
        return None
    linked = references.resolve_one(definition, row, access.follows)
    return access if access.allows({**row, **linked}) else None
