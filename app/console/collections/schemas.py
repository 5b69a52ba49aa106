"""For superadmins: the editor of a collection's fields; a plan comes before every change."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from flask import request
from werkzeug.wrappers import Response as BaseResponse

from app.collections import definition, masking, removal, schema, service, table, updates
from app.collections.fields import RETURN_TYPES, TYPES
from app.collections.models import Collection
from app.console.collections import schema_form
from app.console.collections.listing import ONE_COLLECTION
from app.console.collections.schema_form import SchemaForm
from app.console.shell import forms, guard
from app.console.shell.blueprint import blueprint
from app.console.shell.forms import Form, Page, told
from app.errors import AppError, Conflict, InvalidValues, problem
from app.rest.access import public

NEW, SCHEMA = "/console/collections/new", f"{ONE_COLLECTION}/schema"
Plan = Mapping[str, Any]


@blueprint.get(NEW)
@public
@guard.for_superadmins
def show_new_collection() -> Page:
    """The editor of a collection that is to be made."""
    return _editor(None, schema_form.blank())


@blueprint.post(NEW)
@public
@guard.for_superadmins
def make_collection() -> Page | BaseResponse:
    """Add a row to the editor, show what would be made, or make it."""
    form = schema_form.sent()
    if request.form.get("do") == "add":
        form.add_row()
        return _editor(None, form)
    try:
        specs = form.specs()
        with form.telling_unread():
            plan = _plan_of_new(form["collection_name"], specs)
        if not _is_planned(form, specs):
            return _editor(None, form, plan)
        row = service.create(form["collection_name"], specs, {"options": form.options()})
    except AppError as error:
        return _editor(None, form.refused(_about_name(error)))
    notice = f"{row.name} is made. It is closed to all but superadmins until you edit its rules."
    return told(notice, "console.show_collection", collection_id=row.id)


@blueprint.get(SCHEMA)
@public
@guard.for_superadmins
def show_schema(collection_id: str) -> Page:
    """The editor with the fields as they are."""
    row = service.find(collection_id)
    return _editor(row, schema_form.of_schema(row.schema, row.version, row.options))


@blueprint.post(SCHEMA)
@public
@guard.for_superadmins
def change_schema(collection_id: str) -> Page | BaseResponse:
    """Add a row to the editor, show what would change, or change it."""
    row = service.find(collection_id)
    form = schema_form.sent(row.schema)
    if request.form.get("do") == "add":
        form.add_row()
        return _editor(row, form)
    try:
        version, form.values["version"] = form["version"], str(row.version)
        service.check_seen(row, version)
        specs = form.specs()
        with form.telling_unread():
            plan = _with_options(updates.plan(row.id, specs), row, form)
        if not _is_planned(form, specs):
            return _editor(row, form, plan)
        changes = {"options": form.options()}
        row = updates.update(row.id, specs, changes, seen=form["version"])
    except AppError as error:
        return _editor(row, form.refused(error))
    return told(
        f"The fields of {row.name} are saved.", "console.show_collection", collection_id=row.id
    )


@blueprint.get(f"{ONE_COLLECTION}/delete")
@public
@guard.for_superadmins
def show_deletion(collection_id: str) -> Page:
    """What goes with a collection, and the form to type its name into."""
    return _deletion(service.find(collection_id), Form())


@blueprint.post(f"{ONE_COLLECTION}/delete")
@public
@guard.for_superadmins
def delete_collection(collection_id: str) -> Page | BaseResponse:
    """Delete a collection whose name was typed."""
    row, form = service.find(collection_id), forms.sent("name", chosen="along")
    name = row.name
    try:
        if form["name"] != name:
            message = f"Type {name} to delete this collection."
            raise InvalidValues([problem("name", "invalid_option", message)])
        gone = removal.delete(row.id, form.chosen)
    except AppError as error:
        return _deletion(row, form.refused(error))
    others = [one["collection_name"] for one in gone.get("also_deleted", ())]
    count = sum(one["records_deleted"] for one in (gone, *gone.get("also_deleted", ())))
    notice = f"{', '.join([name, *others])} {'are' if others else 'is'} deleted,"
    notice += f" with {count} record{'' if count == 1 else 's'}."
    return told(notice, "console.show_collections")


def _plan_of_new(name: str, specs: Sequence[schema.Spec]) -> Plan:
    known = service.targets() | {name.lower(): name}
    found = _of_name(schema.name_problems(name)) + schema.problems(specs, known)
    if not specs:
        found.append(problem("name_0", "required", "Name a field."))
    if found:
        raise InvalidValues(found)
    made = definition.from_row(service.new(name, specs, known))
    operations = [
        {"operation": "add_field", "field": spec["name"], "property": None} for spec in specs
    ]
    return {"operations": operations, "sql": table.creation(made.table), "problems": []}


def _with_options(plan: Plan, row: Collection, form: SchemaForm) -> Plan:
    changed = [
        {"field": row.name, "property": name, "before": bool(row.options.get(name)), "after": after}
        for name, after in form.options().items()
        if after != bool(row.options.get(name))
    ]
    return {**plan, "operations": [*plan["operations"], *changed]}


def _of_name(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    # A field may be called `name`, too.
    return [{**one, "field": "collection_name"} for one in found]


def _about_name(error: AppError) -> AppError:
    if isinstance(error, Conflict) and error.extra.get("field") == "name":
        return Conflict(error.message, field="collection_name")
    return error


def _is_planned(form: SchemaForm, specs: Sequence[schema.Spec]) -> bool:
    """Whether this is to be applied, and is what the plan that was looked at showed."""
    text = orjson.dumps([form["collection_name"], form["version"], specs, form.options()])
    digest = hashlib.sha256(text).hexdigest()
    seen, form.values["planned"] = form["planned"], digest
    return request.form.get("do") == "apply" and seen == digest


def _editor(row: Collection | None, form: SchemaForm, plan: Plan | None = None) -> Page:
    return form.page(
        "console/collections/schema.html",
        collection=row,
        plan=plan,
        types=TYPES,
        return_types=RETURN_TYPES,
        masks=sorted(masking.MASKS, key=lambda one: one != "full"),  # which is the usual one
        on_delete=schema.ON_DELETE,
        targets=service.names(),
    )


def _deletion(row: Collection, form: Form) -> Page:
    bound = removal.bound_to(row)
    return form.page(
        "console/collections/delete.html",
        collection=row,
        bound=bound,
        records=service.record_counts([row, *bound]),
    )
