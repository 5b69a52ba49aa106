"""For superadmins: the collections of this instance, their fields and their rules."""

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

ONE_COLLECTION = "/console/collections/<uuid:collection_id>"


@blueprint.get("/console/collections")
@public
@guard.for_superadmins
def show_collections() -> str:
    """The collections of this instance."""
    listing = lists.asked_for("console.show_collections")
    listing.holding(service.page(listing.skip, lists.SIZE, listing.search))
    found = service.record_counts(listing.items, lists.MOST_COUNTED)
    counts = {id: lists.told(number) for id, number in found.items()}
    return render_template("console/collections/list.html", listing=listing, counts=counts)


@blueprint.get(ONE_COLLECTION)
@public
@guard.for_superadmins
def show_collection(collection_id: str) -> str:
    """One collection with its fields and rules."""
    with versioned_cache.reloading():
        row, collection = found(collection_id)
        return render_template(
            "console/collections/one.html",
            collection=collection,
            records=lists.told(service.record_counts([row], lists.MOST_COUNTED)[row.id]),
            fields=[(one, targets(collection, one)) for one in collection.declared.values()],
            operations=OPERATIONS,
            tell_rule=rules_form.tell_rule,
            tell_list=rules_form.tell_list,
        )


def found(collection_id: str) -> tuple[Collection, Definition]:
    """The collection as stored now, and as the application works with it. Raises NotFound."""
    row = service.find(collection_id)
    return row, definition.from_row(row)


def targets(collection: Definition, field: Field) -> Definition | None:
    """The collection that a field refers to."""
    return collection.target(field.name) if field.collection else None
