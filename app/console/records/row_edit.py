"""A row of a record table as a form: it changes the fields that have a column."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from app.console.records import record_form
from app.console.records.record_form import RecordForm, Widget
from app.console.shell.scopes import CollectionScope
from app.errors import Forbidden, NotFound
from app.records import service
from app.records.read.views import RecordView
from app.web.converters import UuidPath

PARAMETER = "edit"  # of the query string: the id of the record


@dataclass(frozen=True)
class RowEdit:
    record: RecordView
    form: RecordForm

    @property
    def widgets(self) -> Mapping[str, Widget]:
        """The inputs by field."""
        return {widget.field.name: widget for widget in self.form.widgets}


def open_row(scope: CollectionScope, record_id: str, names: Collection[str]) -> RowEdit | None:
    """The row of a record with inputs for some fields; None if the caller may change none."""
    access = scope.access(scope.collection, "update")
    if access is None or not UuidPath.accepts(record_id):
        return None
    try:
        record = service.get(scope.collection.name, record_id.lower(), None, by=scope.by)
    except (Forbidden, NotFound):
        return None
    form = record_form.from_record(access, record)
    shown = [widget for widget in form.widgets if widget.field.name in names]
    form.widgets = [widget for widget in shown if widget.kind != "files"]
    form.values = {widget.name: form.before[widget.name] for widget in form.widgets}
    form.values["seen"] = form.etag = record.etag
    return RowEdit(record, form) if form.widgets else None
