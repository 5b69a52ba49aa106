"""The inputs of attributes in the forms of users and accounts."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.accounts import attributes
from app.accounts.attributes import Kind, Level
from app.collections import attribute_values
from app.console.records import display, record_form
from app.console.records.record_form import RecordForm, Widget
from app.console.shell import forms
from app.types import JSONMapping, JSONObject

PREFIX = "attributes."


@dataclass
class AttributeForm(RecordForm):
    """An input for each attribute that the caller may write, and the text of each other one."""

    kind: Kind = Kind.USERS
    level: Level = Level.MEMBERS
    facts: dict[str, str] = field(default_factory=dict)
    """What the caller sees and may not write, by label."""

    def attributes(self, *, new: bool = False) -> JSONObject:
        """The changed values, cleaned. Raises InvalidValues or Forbidden."""
        sent = self.body(new=new)
        return attribute_values.cleaned(self.kind, sent, self.level, is_new=new)

    def _input_name(self, name: str | None) -> str | None:
        own = super()._input_name(name.removeprefix(PREFIX) if name else None)
        return own if own in self.values else name


def stored(kind: Kind, level: Level, values: JSONMapping) -> AttributeForm:
    """The form for the values of a user or account, as far as somebody at this level sees them."""
    form = AttributeForm(kind=kind, level=level)
    for name, one in attributes.load(kind).by_name.items():
        label = one.definition["label"] or name
        if one.may_write(level):
            spec = attribute_values.field_of(one)
            text = record_form.input_text(spec, values.get(name))
            form.widgets.append(Widget(spec, record_form.widget_kind(spec, text), label=label))
            form.before[form.widgets[-1].name] = text
        elif one.may_see(level) and name in values:
            form.facts[label] = display.format_value(values[name])
    form.values = dict(form.before)
    return form


def submitted(of: AttributeForm, *names: str, selected: str | None = None) -> AttributeForm:
    """A form with what was submitted of it and of other inputs, in which errors show."""
    form, others = record_form.fill_submitted(of), forms.submitted(*names, selected=selected)
    form.values |= others.values
    form.selected = others.selected
    return forms.show_errors_in(form)
