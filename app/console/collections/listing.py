"""The collections of this instance, their fields and rules, for superadmins."""

from __future__ import annotations

from flask import render_template

from app.collections import definition, service
from app.collections.definition import Definition
from app.collections.fields import Field
from app.collections.models import Collection
from app.console.collections import rules_form
from app.console.shell import guard, lists
from app.console.shell.blueprint import blueprint
from app.db import versioned_cache
from app.rest.access import public
from app.rules import OPERATIONS

COLLECTION = "/console/collections/<uuid:collection_id>"


@blueprint.get("/console/collections")
@public
@guard.superadmins_only
def show_collections() -> str:
    """The collections of this instance."""
    listing = lists.from_request("console.show_collections")
    listing.with_page(service.page(listing.skip, lists.PAGE_SIZE, listing.search))
    counted = service.record_counts(listing.items, lists.MAX_COUNTED)
    counts = {id: lists.format_count(number) for id, number in counted.items()}
    return render_template("console/collections/list.html", listing=listing, counts=counts)


@blueprint.get(COLLECTION)
@public
@guard.superadmins_only
def show_collection(collection_id: str) -> str:
    """One collection with its fields and rules."""
    with versioned_cache.reloading():
        row, collection = load(collection_id)
        return render_template(
            "console/collections/one.html",
            collection=collection,
            records=lists.format_count(service.record_counts([row], lists.MAX_COUNTED)[row.id]),
            fields=[(field, targets(collection, field)) for field in collection.declared.values()],
            indexes=[(", ".join(spec["fields"]), spec["unique"]) for spec in row.indexes],
            operations=OPERATIONS,
            describe_rule=rules_form.describe_rule,
            describe_fields=rules_form.describe_fields,
        )


def load(collection_id: str) -> tuple[Collection, Definition]:
    """The collection's row and its definition. Raises NotFound."""
    row = service.find(collection_id)
    return row, definition.from_row(row)


def targets(collection: Definition, field: Field) -> Definition | None:
    """The collection that a reference field points to."""
    return collection.target(field.name) if field.collection else None
