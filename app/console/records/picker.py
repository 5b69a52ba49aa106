"""The picker of a reference in a form: finds records and people by name, without scripts."""

from __future__ import annotations

import json

from flask import request

from app.collections.fields.face import WidgetKind
from app.console.records import references
from app.console.records.record_form import RecordForm
from app.console.shell.scopes import CollectionScope

PICKED = (WidgetKind.REFERENCE, WidgetKind.PERSON, WidgetKind.ENTRIES)


def run(scope: CollectionScope, form: RecordForm) -> bool:
    """Perform the action of the reference picker; False if there is none."""
    action, _, rest = request.form.get("do", "").replace("\0", "").partition(":")
    name, _, record_id = rest.partition(":")
    pickers = {w.field.name: w for w in form.widgets if w.kind in PICKED}
    if action == "pick" and name in pickers:
        picker = pickers[name]
        if picker.kind == WidgetKind.ENTRIES:
            chosen = dict.fromkeys([*form.chosen(picker), record_id])
            form.values[picker.name] = json.dumps(list(chosen))
        else:
            form.values[picker.name] = record_id
        form.values[pickers[name].search_name] = ""
        return True
    if action != "save":  # the Enter key searches if a search input has text
        typed = (field for field, picker in pickers.items() if form[picker.search_name])
        target = name if action == "find" else next(typed, None)
        if target in pickers:
            _search(scope, form, target)
            return True
    return False


def _search(scope: CollectionScope, form: RecordForm, name: str) -> None:
    target = scope.collection.followed(name)
    if target is not None:
        text = form[f"find_{name}"].strip()
        form.hits[name] = references.search(target, text, scope.by)


def load_labels(scope: CollectionScope, form: RecordForm) -> None:
    for widget in form.widgets:
        target = scope.collection.followed(widget.field.name)
        if target is not None and form[widget.name] and widget.kind in PICKED:
            if widget.kind == WidgetKind.ENTRIES:
                ids = form.chosen(widget)
                form.entry_labels[widget.name] = references.labels(target, ids, scope.by)
                continue
            id = form[widget.name].strip().lower()
            form.labels[widget.name] = references.labels(target, [id], scope.by).get(id, "")
