"""The schema editor, which shows a plan before each change, for superadmins."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import orjson
from flask import redirect, request, url_for
from werkzeug.wrappers import Response as BaseResponse

from app.collections import (
    definitions,
    indexes,
    masking,
    removal,
    renaming,
    schema,
    service,
    table,
    updates,
)
from app.collections.changes import Proposal
from app.collections.fields import RETURN_TYPES, TYPES
from app.collections.models import Collection
from app.console.collections import plan_texts, schema_form
from app.console.collections.listing import COLLECTION
from app.console.collections.schema_form import SchemaForm
from app.console.shell import completions, forms, names
from app.console.shell.access import SUPERADMIN
from app.console.shell.blueprint import page
from app.console.shell.forms import Form, Page, redirect_with_notice
from app.errors import InvalidValues, problem
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext, ngettext

MASKS = sorted(masking.MASKS, key=lambda mask: mask != "full")  # the default first
NEW, SCHEMA = "/console/collections/new", f"{COLLECTION}/schema"
Plan = JSONMapping


@page(NEW, role=SUPERADMIN)
def show_new_collection(form: SchemaForm | None = None) -> Page:
    return _editor(None, form or schema_form.blank())


@page(NEW, "POST", role=SUPERADMIN, form_page=show_new_collection)
def make_collection() -> Page | BaseResponse:
    """Change the rows of the editor, show the plan, or create the collection."""
    form = schema_form.submitted()
    if form.act(request.form.get("do", "")):
        return _editor(None, form)
    specs = form.specs()
    with form.including_unparsed():
        plan = _creation_plan(form["collection_name"], specs, form.indexes())
    if not _is_planned(form, specs):
        return _editor(None, form, plan)
    body = {"options": form.options(), "indexes": form.indexes()}
    row = service.create(form["collection_name"], specs, body)
    notice = gettext(
        "%(name)s is created. Only superadmins can access it until you edit its rules.",
        name=row.name,
    )
    return redirect_with_notice(notice, "console.show_collection", collection_id=row.id)


@page(SCHEMA, role=SUPERADMIN)
def show_schema(collection_id: str, form: SchemaForm | None = None) -> Page | BaseResponse:
    """The editor with the current fields."""
    row = service.find(collection_id)
    if row.view is not None:
        return redirect(url_for("console.show_view", definition_id=row.id))
    return _editor(row, form or schema_form.from_collection(row))


@page(SCHEMA, "POST", role=SUPERADMIN, form_page=show_schema)
def change_schema(collection_id: str) -> Page | BaseResponse:
    """Change the rows of the editor, show the plan, or apply it."""
    row = service.find(collection_id)
    form = schema_form.submitted(row.schema)
    if form.act(request.form.get("do", "")):
        return _editor(row, form)
    version, form.values["version"] = form["version"], str(row.version)
    service.check_version(row, version)
    specs = _with_new_names(form.specs(), row, form.renames())
    with form.including_unparsed():
        name = _new_name(form, row)
        index_specs = form.changed_indexes(row.indexes)
        order = form.field_order()
        proposal = Proposal(
            specs,
            index_specs,
            form.removed(),
            name=name,
            order=order,
            options=form.options(),
        )
        plan = _with_options(updates.plan(row.id, proposal), row, form)
    if not _is_planned(form, specs):
        return _editor(row, form, plan)
    planned = replace(proposal, plan_hash=plan["plan_hash"], expected_version=form["version"])
    row, _ = updates.update(row.id, planned, {"options": form.options()})
    return redirect_with_notice(
        gettext("The fields of %(collection)s are saved.", collection=row.name),
        "console.show_collection",
        collection_id=row.id,
    )


@page(f"{COLLECTION}/delete", role=SUPERADMIN)
def show_deletion(collection_id: str, form: Form | None = None) -> Page:
    """The page that confirms a deletion, with what else it removes."""
    row = service.find(collection_id)
    bound = removal.bound_to(row)
    return (form or Form()).render(
        "console/collections/delete.html",
        collection=row,
        bound=bound,
        records=service.record_counts([row, *bound]),
    )


@page(f"{COLLECTION}/delete", "POST", role=SUPERADMIN, form_page=show_deletion)
def delete_collection(collection_id: str) -> BaseResponse:
    """Delete a collection after its name was typed."""
    row, form = service.find(collection_id), forms.submitted("name", selected="along")
    name = row.name
    if form["name"] != name:
        message = gettext("Type %(name)s to delete this collection.", name=name)
        raise InvalidValues([problem("name", "invalid_option", message)])
    result = removal.delete(row.id, form.selected)
    other_names = [deleted["collection_name"] for deleted in result.get("also_deleted", ())]
    count = sum(deleted["records_deleted"] for deleted in (result, *result.get("also_deleted", ())))
    return redirect_with_notice(
        _deletion_notice([name, *other_names], count), "console.show_collections"
    )


def _deletion_notice(names: Sequence[str], count: int) -> str:
    if len(names) == 1:
        return ngettext(
            "%(name)s is deleted, with %(count)s record.",
            "%(name)s is deleted, with %(count)s records.",
            count,
            name=names[0],
            count=count,
        )
    return ngettext(
        "%(names)s are deleted, with %(count)s record.",
        "%(names)s are deleted, with %(count)s records.",
        count,
        names=", ".join(names),
        count=count,
    )


def _creation_plan(
    name: str, specs: Sequence[schema.Spec], index_specs: Sequence[indexes.Spec]
) -> Plan:
    target_names = service.targets() | {name.lower(): name}
    problems = _name_problems(schema.name_problems(name))
    problems += schema.problems(specs, target_names, index_specs)
    if not specs:
        problems.append(problem("name_0", "required", gettext("Add at least one field.")))
    if problems:
        raise InvalidValues(problems)
    proposed = definitions.from_row(service.new(name, specs, target_names, index_specs))
    operations: list[JSONObject] = [
        {"operation": "add_field", "field": spec["name"], "property": None} for spec in specs
    ]
    operations += [
        {"operation": "add_index", "field": None, "property": None, "index": spec}
        for spec in index_specs
    ]
    return {"operations": operations, "sql": table.creation(proposed.table), "problems": []}


def _new_name(form: SchemaForm, row: Collection) -> str | None:
    """The new name of the collection, if it has one. Raises InvalidValues."""
    name = form["collection_name"] or row.name
    problems = schema.name_problems(name) if name.lower() != row.name_key else []
    if problems:
        raise InvalidValues(_name_problems(problems))
    return name


def _with_new_names(
    specs: Sequence[JSONObject], row: Collection, renames: Mapping[str, str]
) -> Sequence[JSONObject]:
    """The specs; expressions that were not edited follow renamed fields."""
    old = definitions.from_row(row)
    expressions = zip(old.schema, renaming.renamed(old, renames).schema, strict=True)
    followed = {before["name"]: (before, after) for before, after in expressions}
    for spec in specs:
        before, after = followed.get(spec.get("rename_from", spec["name"]), (spec, spec))
        if spec.get("expression") and spec["expression"] == before["expression"]:
            spec["expression"] = after["expression"]
    return specs


def _with_options(plan: Plan, row: Collection, form: SchemaForm) -> Plan:
    changed = [
        {
            "operation": "change_options",
            "field": row.name,
            "property": name,
            "before": before,
            "after": after,
        }
        for name, after in form.options().items()
        for before in [row.options.get(name, False if after in (True, False) else None)]
        if after != before
    ]
    return {**plan, "operations": [*plan["operations"], *changed]}


def _name_problems(problems: Sequence[JSONMapping]) -> list[JSONObject]:
    # A field may also be called `name`.
    return [{**detail, "field": "collection_name"} for detail in problems]


def _is_planned(form: SchemaForm, specs: Sequence[schema.Spec]) -> bool:
    """Whether the user confirms exactly the plan that was shown."""
    sent = [form["collection_name"], form["version"], specs, form.options(), form.indexes()]
    text = orjson.dumps(sent)
    digest = hashlib.sha256(text).hexdigest()
    planned, form.values["planned"] = form["planned"], digest
    return request.form.get("do") == "apply" and planned == digest


def _editor(row: Collection | None, form: SchemaForm, plan: Plan | None = None) -> Page:
    return form.render(
        "console/collections/schema.html",
        collection=row,
        plan=plan,
        changes=plan_texts.changes(plan["operations"], form.specs()) if plan else [],
        types=names.types(TYPES),
        return_types=names.types(RETURN_TYPES),
        masks={name: schema_form.MASK_NAMES[name] for name in MASKS},
        on_delete={one: schema_form.ON_DELETE_NAMES[one] for one in ("", *schema.ON_DELETE)},
        targets=service.names(),
        completions=completions.plain(form.names(), caller=False),
    )
