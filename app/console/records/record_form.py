"""A record as a form: a widget per field, and the request body."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

from flask import request

from app import clock
from app.auth.principal import Principal
from app.collections.access import Access
from app.collections.fields import Field, FileField, InvalidValue
from app.collections.fields.face import WidgetKind
from app.collections.fields.file import MOST_FILES
from app.collections.fields.many import MOST_ITEMS
from app.collections.fields.select import MAX_CHOICES
from app.console.records import display, file_previews, references
from app.console.records.references import Hits
from app.console.shell import checks
from app.console.shell.forms import Form, show_errors_in
from app.console.shell.scopes import CollectionScope
from app.errors import AppError, Conflict, Forbidden, NotFound, PreconditionFailed, problem
from app.files import ownership, uploads
from app.records import service
from app.records.read.views import RecordView
from app.types import JSONMapping, JSONObject
from app.web.app import UuidPath
from app.web.languages import gettext, lazy_gettext

RecordFormT = TypeVar("RecordFormT", bound="RecordForm")
# Kinds whose values keep surrounding blanks.
UNSTRIPPED = (WidgetKind.TEXT, WidgetKind.AREA, WidgetKind.CHOICE)
MASKED = lazy_gettext("You see a masked value. It stays unchanged unless you edit it.")
WRITE_ONLY = lazy_gettext(
    "You may write this field but not see it. Leave it empty to keep its value."
)
CHANGED = lazy_gettext(
    "Somebody else has changed this record in the meantime. Your entries are below, with the stored"
    " values where they differ. Save again to overwrite them."
)
PICKED = (WidgetKind.REFERENCE, WidgetKind.PERSON, WidgetKind.ENTRIES)


@dataclass(frozen=True)
class Widget:
    """The input of a field."""

    field: Field
    kind: WidgetKind
    note: str | None = None
    """Its help."""
    is_masked: bool = False
    """Whether it holds the mask of a value."""
    is_write_only: bool = False
    """Whether the caller may not view the value, so that it is empty."""
    label: str = ""
    """What the form calls it, if not by its name."""

    @property
    def name(self) -> str:
        return f"f_{self.field.name}"

    @property
    def search_name(self) -> str:
        """The name of the input that searches for a reference."""
        return f"find_{self.field.name}"

    def stored_text(self, stored: str) -> str:
        """A stored value in words."""
        if self.kind == WidgetKind.MOMENT and stored:
            return f"{stored} UTC"
        return self.field.choices.get(stored, stored) or gettext("empty")


@dataclass
class RecordForm(Form):
    """The submitted value of each field, the stored one, and search hits for references."""

    widgets: list[Widget] = field(default_factory=list)
    before: dict[str, str] = field(default_factory=dict)
    etag: str = ""
    """The ETag of the record; empty for a new one, and for one that the caller may not view."""
    hits: dict[str, Hits | None] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    """The labels of referenced records, by input."""
    entry_labels: dict[str, dict[str, str]] = field(default_factory=dict)
    """The labels of the entries of lists by id, by input."""
    files: dict[str, JSONObject] = field(default_factory=dict)
    """The descriptions of files in the inputs, by id."""
    unparsed: dict[str, JSONObject] = field(default_factory=dict)
    """Problems of values that do not parse, by field."""

    def body(self, *, new: bool) -> JSONObject:
        """The changed values as the API takes them; values that do not parse stay text."""
        body: JSONObject = {}
        for widget in self.widgets:
            name = widget.field.name
            try:
                body |= self._value(widget, new)
            except InvalidValue as error:
                # The service refuses it as well and reports all other problems.
                body[name] = self[widget.name]
                place = checks.place(self._text(widget)) if widget.kind == WidgetKind.JSON else {}
                self.unparsed[name] = problem(name, error.code, str(error), **place)
        return body

    def _value(self, widget: Widget, new: bool) -> JSONObject:
        """The value by its field; empty if it is unchanged."""
        spec, text = widget.field, self._text(widget)
        if _is_same(widget.kind, text, "" if new else self.before.get(widget.name, "")):
            # Whoever empties the default of a new record means it.
            return {spec.name: None} if new and spec.default is not None else {}
        if text == "":
            return {spec.name: None}
        if widget.kind != WidgetKind.FILES:
            return {spec.name: spec.parse(text)}
        ids = _choices(text)
        # In a field of one file the last one counts: the newest upload.
        return {spec.name: ids if is_list(spec) else ids[-1]}

    def _text(self, widget: Widget) -> str:
        text = self[widget.name]
        return text if widget.kind in UNSTRIPPED else text.strip()

    def chosen(self, widget: Widget) -> list[str]:
        """The checked choices of a widget."""
        return _choices(self[widget.name])

    def chosen_files(self, widget: Widget) -> list[JSONObject]:
        """The files that a widget's field is to have."""
        ids = self.chosen(widget)
        return [{"id": id, "name": f"…{id[-8:]}", **self.files.get(id, {})} for id in ids]

    def load_uploads(self, by: Principal) -> None:
        """Load what is known of uploads in the inputs that no record has yet."""
        of_files = [widget for widget in self.widgets if widget.kind == WidgetKind.FILES]
        ids = {id for widget in of_files for id in self.chosen(widget)}
        waiting = ownership.waiting(ids - self.files.keys(), by)
        self.files |= {file.id: file_previews.describe(file) for file in waiting}

    def take_uploads(self, by: Principal) -> None:
        """Store the uploads of the request, for the record that the form stands for."""
        sent = [
            (widget, upload)
            for widget in self.widgets
            if isinstance(widget.field, FileField)
            for upload in request.files.getlist(f"new_{widget.field.name}")
            if upload.filename
        ]
        if not sent:
            return
        with uploads.receiving() as begun:
            for _, upload in sent:
                copy = uploads.start(upload.filename)
                begun.append(copy)
                upload.stream.seek(0)  # the view may run again
                shutil.copyfileobj(upload.stream, copy)
                copy.seek(0)
            stored = uploads.store(begun, by, with_record=False)
        for (widget, _), file in zip(sent, stored, strict=True):
            self.files[file.id] = file_previews.describe(file)
            earlier = self.chosen(widget) if is_list(widget.field) else []
            self.values[widget.name] = json.dumps([*earlier, file.id])

    def with_error(self, error: AppError) -> RecordForm:
        """The form with the messages of an error, by input.

        If the record has changed, each input that differs gets the stored value beside it.
        """
        if isinstance(error, PreconditionFailed):
            self.values["seen"] = self.etag
            self.widgets = [self._with_stored_note(widget) for widget in self.widgets]
            error = Conflict(str(CHANGED))
        # The form is all that shows this error, so the names of inputs replace those of fields.
        if details := error.extra.get("details"):
            details = [self.unparsed.get(detail["field"] or "", detail) for detail in details]
            error.extra["details"] = [
                {**detail, "field": self._input_name(detail["field"])} for detail in details
            ]
        elif error.extra.get("field"):
            error.extra["field"] = self._input_name(error.extra["field"])
        super().with_error(error)
        return self

    def _with_stored_note(self, widget: Widget) -> Widget:
        stored = self.before[widget.name]
        if (
            widget.is_write_only
            or widget.kind == WidgetKind.FILES
            or _is_same(widget.kind, self._text(widget), stored)
        ):
            return widget
        note = gettext("Stored: %(value)s", value=widget.stored_text(stored))
        return replace(widget, note=note)

    def _input_name(self, name: str | None) -> str | None:
        """The input of a field; the name as it is if the form has no input for it."""
        return f"f_{name}" if f"f_{name}" in self.values else name


def _is_same(kind: WidgetKind, text: str, before: str) -> bool:
    if kind != WidgetKind.MOMENT or not (text and before):
        return text == before
    try:  # browsers omit zero seconds and fractions
        return clock.parse(text) == clock.parse(before)
    except ValueError:
        return False


def _choices(text: str) -> list[str]:
    return json.loads(text) if text else []


def is_list(spec: Field) -> bool:
    """Whether a field holds several files."""
    return isinstance(spec, FileField) and spec.most_files > 1


def from_record(access: Access, values: JSONMapping | None) -> RecordForm:
    """The form of a record; empty if the caller may not view it."""
    values = values or {}
    form = RecordForm(widgets=field_widgets(access, values))
    for widget in form.widgets:
        value = values.get(widget.field.name)
        if widget.kind == WidgetKind.FILES:
            form.files |= {file["id"]: file for file in file_previews.files_in(value)}
        text = str(value) if widget.is_masked else input_text(widget.field, value)
        form.before[widget.name] = text
    form.values = dict(form.before)
    return form


def blank(access: Access) -> RecordForm:
    """The form of a new record with its defaults."""
    form = RecordForm(widgets=field_widgets(access, None))
    for widget in form.widgets:
        form.values[widget.name] = input_text(widget.field, widget.field.default)
    return form


def field_widgets(access: Access, values: JSONMapping | None) -> list[Widget]:
    """The widgets of the fields that the caller may write."""
    widgets = []
    for name, spec in access.definition.fields.items():
        if name not in access.writable:
            continue
        if values is not None and name not in values:
            kind = widget_kind(spec, "")
            widgets.append(Widget(spec, kind, WRITE_ONLY, is_write_only=True))
        elif values is not None and name in access.masked and values[name] is not None:
            widgets.append(Widget(spec, WidgetKind.TEXT, MASKED, is_masked=True))
        else:
            text = input_text(spec, (values or {}).get(name))
            note = None
            if values is None and spec.default_expression is not None:
                note = gettext("Filled in if left empty")
            widgets.append(Widget(spec, widget_kind(spec, text), note))
    return widgets


def widget_kind(spec: Field, text: str) -> WidgetKind:
    """The input for a text: one of several lines for a text that has them."""
    if spec.face.widget == WidgetKind.TEXT and "\n" in text:
        return WidgetKind.AREA  # an input of one line would lose the breaks
    return spec.face.widget


def input_text(spec: Field, value: object) -> str:
    """A value as the text of its input; files are their ids as JSON."""
    if value is None:
        return ""
    if isinstance(spec, FileField):
        return json.dumps([file["id"] for file in file_previews.files_in(value)])
    return spec.written(value)


@lru_cache(display.MAX_CACHED)
def editable_at_once(access: Access | None) -> list[str]:
    """The fields that can get one value in several records."""
    if access is None:
        return []
    return [
        name
        for name, spec in access.definition.fields.items()
        if name in access.writable and not spec.unique and not isinstance(spec, FileField)
    ]


def fill_submitted(form: RecordFormT) -> RecordFormT:
    """The form with the submitted values, in which errors show."""
    for name in [*form.values, *(widget.search_name for widget in form.widgets)]:
        form.values[name] = _line_feeds(request.form.get(name, ""))
    for widget in form.widgets:
        if widget.kind in (WidgetKind.CHOICES, WidgetKind.ENTRIES, WidgetKind.TEXTS):
            form.values[widget.name] = _checked(widget, form.before.get(widget.name, ""))
        elif widget.kind == WidgetKind.FILES:
            ids = [id.replace("\0", "") for id in request.form.getlist(widget.name)[:MOST_FILES]]
            form.values[widget.name] = json.dumps(list(dict.fromkeys(ids))) if ids else ""
    return show_errors_in(form)


def _line_feeds(text: str) -> str:
    return text.replace("\0", "").replace("\r\n", "\n")


def _checked(widget: Widget, before: str) -> str:
    """The checked choices as JSON; those that were checked before keep their order."""
    most = max(MAX_CHOICES, MOST_ITEMS) + 1
    sent = [_line_feeds(one) for one in request.form.getlist(widget.name)[:most]]
    if widget.kind == WidgetKind.TEXTS:
        added = _line_feeds(request.form.get(f"add_{widget.field.name}", "")).split("\n", most)
        sent += filter(None, map(str.strip, added[:most]))
    checked = dict.fromkeys(sent)
    former = [choice for choice in _choices(before) if choice in checked]
    chosen = list(dict.fromkeys([*former, *checked]))
    # Nothing checked is null, unless the field is required or has an empty list already.
    is_null = not chosen and not widget.field.required and before != "[]"
    return "" if is_null else json.dumps(chosen, ensure_ascii=False)


@dataclass(frozen=True)
class RowEdit:
    """A row of the list that has inputs in place of its values."""

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
    form = from_record(access, record)
    shown = [widget for widget in form.widgets if widget.field.name in names]
    form.widgets = [widget for widget in shown if widget.kind != WidgetKind.FILES]
    form.values = {widget.name: form.before[widget.name] for widget in form.widgets}
    form.values["seen"] = form.etag = record.etag
    return RowEdit(record, form) if form.widgets else None


def run_picker(scope: CollectionScope, form: RecordForm) -> bool:
    """Do what a button of a picker asks for, `pick:field:id` or `find:field`; False if none does.

    The Enter key, which presses the first button, searches if there is text to search by.
    """
    action, _, rest = request.form.get("do", "").replace("\0", "").partition(":")
    name, _, record_id = rest.partition(":")
    pickers = {widget.field.name: widget for widget in form.widgets if widget.kind in PICKED}
    if action == "pick" and name in pickers:
        picker = pickers[name]
        if picker.kind == WidgetKind.ENTRIES:
            record_id = json.dumps(list(dict.fromkeys([*form.chosen(picker), record_id])))
        form.values |= {picker.name: record_id, picker.search_name: ""}
        return True
    if action == "save":
        return False
    typed = (field for field, picker in pickers.items() if form[picker.search_name])
    searched = name if action == "find" else next(typed, None)
    if searched not in pickers:
        return False
    target = scope.collection.followed(searched)
    if target is not None:
        text = form[pickers[searched].search_name].strip()
        form.hits[searched] = references.search(target, text, scope.by)
    return True


def load_labels(scope: CollectionScope, form: RecordForm) -> None:
    """Load the labels of the records and people that are picked."""
    for widget in form.widgets:
        target = scope.collection.followed(widget.field.name)
        if target is None or not form[widget.name] or widget.kind not in PICKED:
            continue
        if widget.kind == WidgetKind.ENTRIES:
            ids = form.chosen(widget)
            form.entry_labels[widget.name] = references.labels(target, ids, scope.by)
        else:
            id = form[widget.name].strip().lower()
            form.labels[widget.name] = references.labels(target, [id], scope.by).get(id, "")
