"""The step editor: the steps of a workflow, or the actions of a hook, as inputs.

Each step has a row of inputs, named `<row>.<property>`. The rows within a loop are named
`<row>.steps.<row>`, those within parallel branches `<row>.branches.<branch>.<row>`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import orjson
from werkzeug.datastructures import MultiDict

from app.collections.schema import FIELD_NAME
from app.console.automation import workflow_form
from app.console.shell import checks, forms
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext, lazy_gettext
from app.workflows.language.checks import MAX_BRANCHES, MAX_DEPTH, MAX_STEPS
from app.workflows.language.definition import (
    ACTIONS,
    CONDITION,
    EVENTS,
    FOR_EACH,
    LOOP,
    LOOPS,
    ON_ERROR,
    OWN_PROPERTIES,
    OWN_STEPS,
    PARALLEL,
    PROPERTIES,
)

FOLLOWING, END = "", "-end"  # values of `next` that name no step
DATA = "data"
RECORD_OPERATIONS = {"create_record": "create", "update_record": "update"}
INNER = {LOOP: "steps", FOR_EACH: "steps", PARALLEL: "branches"}
AT_THE_TOP = {"name": -2, "next": -1}  # sort keys of inputs; all others have 0
TARGETS = ("next", "on_true", "on_false")
JSON_KINDS = {"data": dict, "headers": dict, "input": dict}
ANY_KIND = ("items", "limit", "to", "body", "functions", "group_by")  # JSON or a text
EXPRESSIONS = ("expression", "condition", "filter")
LONG = (*JSON_KINDS, "items", "body", *EXPRESSIONS)
CHOICES: Mapping[str, Sequence[str]] = {"event": EVENTS, "on_error": ("", *ON_ERROR)}
LABELS = {
    "create_record": lazy_gettext("Create a record"),
    "update_record": lazy_gettext("Update a record"),
    "delete_record": lazy_gettext("Delete a record"),
    "query_records": lazy_gettext("Query records"),
    "aggregate_records": lazy_gettext("Aggregate records"),
    "send_webhook": lazy_gettext("Send a request"),
    "send_email": lazy_gettext("Send a mail"),
    "condition": lazy_gettext("Condition"),
    "wait_delay": lazy_gettext("Wait for a time"),
    "wait_condition": lazy_gettext("Wait until a condition holds"),
    "wait_event": lazy_gettext("Wait for an event"),
    "loop": lazy_gettext("Loop over items"),
    "for_each": lazy_gettext("For each record"),
    "parallel": lazy_gettext("Run in parallel"),
}
PROPERTY_NAMES = {
    "name": lazy_gettext("Name"),
    "next": lazy_gettext("Next"),
    "expression": lazy_gettext("Expression"),
    "on_true": lazy_gettext("On true"),
    "on_false": lazy_gettext("On false"),
    "duration": lazy_gettext("Duration"),
    "poll_interval": lazy_gettext("Poll interval"),
    "timeout": lazy_gettext("Timeout"),
    "event": lazy_gettext("Event"),
    "collection": lazy_gettext("Collection"),
    "condition": lazy_gettext("Condition"),
    "items": lazy_gettext("Items"),
    "steps": lazy_gettext("Steps"),
    "branches": lazy_gettext("Branches"),
    "url": lazy_gettext("URL"),
    "method": lazy_gettext("Method"),
    "headers": lazy_gettext("Headers"),
    "body": lazy_gettext("Body"),
    "to": lazy_gettext("To"),
    "subject": lazy_gettext("Subject"),
    "data": lazy_gettext("Data"),
    "record_id": lazy_gettext("Record id"),
    "filter": lazy_gettext("Filter"),
    "sort": lazy_gettext("Sort"),
    "limit": lazy_gettext("Limit"),
    "on_error": lazy_gettext("On error"),
    "functions": lazy_gettext("Functions"),
    "group_by": lazy_gettext("Group by"),
    "input": lazy_gettext("Input"),
}


@dataclass
class Input:
    """The input of a property of a step: `label` is the property, `name` the HTML name."""

    label: str
    text: str
    required: bool
    name: str = ""
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    position: int | None = None
    """The position of the error in the text."""

    @property
    def editor(self) -> str | None:
        return "rule" if self.label in EXPRESSIONS else "json" if self.label in JSON_KINDS else None

    @property
    def title(self) -> str:
        """The property in words."""
        return PROPERTY_NAMES[self.label]

    @property
    def note(self) -> str:
        """The text beside the title."""
        return ""

    @property
    def help(self) -> str:
        """The values that it takes, unless its name says so."""
        if self.label == "on_error":
            return gettext("Whether the other records go on when a step fails for one.")
        if self.label == "functions":
            return gettext("Separated by commas, such as %(example)s.", example="count(), sum(n)")
        if self.label == "to":
            return gettext("An address, or such as %(example)s.", example='{"role": "admin"}')
        if self.label != "items":
            return ""
        example = "{{ steps.find.output.records }}"
        return gettext("A JSON list, or a template of one, such as %(example)s.", example=example)

    @property
    def suggestions(self) -> Sequence[str]:
        """Values to complete what is entered."""
        return ()

    @property
    def is_long(self) -> bool:
        """Whether it has an input of several lines."""
        return self.label in LONG

    @property
    def options(self) -> Sequence[str]:
        """The values to choose from, if only some are possible."""
        return CHOICES.get(self.label, ())

    @property
    def is_target(self) -> bool:
        """Whether it names another step."""
        return self.label in TARGETS


@dataclass
class Row:
    """A step as inputs; `rest` has the properties without inputs, as JSON.

    The data of a record is an input of its own, or one per field.
    """

    kind: str
    inputs: list[Input]
    rest: str
    lists: list[StepList] = field(default_factory=list)
    path: str = ""
    errors: list[str] = field(default_factory=list)
    is_new: bool = False
    entries: Mapping[str, str] | None = None
    """The texts of the fields of its data; None where its data is JSON."""
    fields: list[Input] = field(default_factory=list)
    as_json: bool = False
    """Whether its data stays JSON even if inputs could show it."""

    @property
    def all_inputs(self) -> list[Input]:
        """Its inputs, those of fields included."""
        return [*self.inputs, *self.fields]

    @property
    def arranged(self) -> list[tuple[Input, bool]]:
        """Its inputs as the form has them, each with whether a row is its own.

        What comes next stands beside the name, wherever the JSON has it. Of an odd number of
        short inputs above a long one, the last one fills its row.
        """
        ordered = sorted(self.inputs, key=lambda one: AT_THE_TOP.get(one.label, 0))
        result, run = list[tuple[Input, bool]](), 0
        for one, after in zip(ordered, [*ordered[1:], None], strict=True):
            run = 0 if one.is_long else run + 1
            is_above_long = after.is_long if after else self.entries is not None
            fills = run % 2 == 1 and is_above_long
            result.append((one, one.is_long or fills))
        return result

    @property
    def writes_record(self) -> bool:
        return self.kind in RECORD_OPERATIONS

    @property
    def label(self) -> str:
        """The type in words; one that an extension adds, or did so, is its own name."""
        return LABELS.get(self.kind, self.kind)

    @property
    def name(self) -> str:
        """The step's name; actions of hooks have none."""
        return self.text("name")

    def text(self, label: str) -> str:
        """The text of an input, empty if there is none."""
        return next((one.text for one in self.inputs if one.label == label), "")

    @property
    def title(self) -> str:
        """The step among the others of its list."""
        number = int(self.path.rpartition(".")[2]) + 1
        return (
            f"{number}. {self.name[:63]}: {self.label}" if self.name else f"{number}. {self.label}"
        )

    @property
    def place(self) -> str:
        """The step in a sentence about it."""
        number = int(self.path.rpartition(".")[2]) + 1
        if self.name:
            return gettext("Step %(number)s “%(name)s”", number=number, name=self.name[:63])
        if any(one.label == "name" for one in self.inputs):
            return gettext("Step %(number)s", number=number)
        return gettext("Action %(number)s", number=number)

    @property
    def is_open(self) -> bool:
        """Whether there is something to see: an error, a warning, or what was just added."""
        noted = any(one.errors or one.warnings for one in self.all_inputs)
        own = self.is_new or bool(self.errors) or noted
        return own or any(inner.is_open for inner in self.lists)


@dataclass
class StepList:
    """A list of steps: all, those of a loop, or a parallel branch."""

    rows: list[Row] = field(default_factory=list)
    path: str = ""
    depth: int = 1
    of_hook: bool = False
    errors: list[str] = field(default_factory=list)
    is_new: bool = False
    new_kind: str = ""

    @property
    def prefix(self) -> str:
        """The prefix of the names of its inputs."""
        return f"{self.path}." if self.path else ""

    @property
    def kinds(self) -> Mapping[str, str]:
        """The types of steps that it may have, in words."""
        if self.of_hook:
            return {k: v for k, v in LABELS.items() if k in ACTIONS}
        leaves = self.depth == MAX_DEPTH
        known = {**LABELS, **{name: name for name in OWN_STEPS}}
        return {k: v for k, v in known.items() if not (leaves and k in INNER)}

    @property
    def is_open(self) -> bool:
        """Whether there is something to see within it."""
        return self.is_new or bool(self.errors) or any(row.is_open for row in self.rows)

    def walk(self) -> Iterator[StepList]:
        yield self
        for row in self.rows:
            for inner in row.lists:
                yield from inner.walk()

    def numbered(self) -> StepList:
        """This list with the inputs named by where they are."""
        for index, row in enumerate(self.rows):
            row.path = f"{self.prefix}{index}"
            for one in row.inputs:
                one.name = f"{row.path}.{one.label}"
            for one in row.fields:
                one.name = f"{row.path}.{DATA}.{one.label}"
            for number, inner in enumerate(row.lists):
                inner.path = f"{row.path}.{INNER[row.kind]}"
                inner.path += f".{number}" if row.kind == PARALLEL else ""
                inner.depth = self.depth + 1
                inner.numbered()
        return self


def from_steps(steps: Sequence[JSONMapping], *, of_hook: bool = False) -> StepList:
    """The rows of steps, or of a hook's actions."""
    return StepList([row(step, of_hook=of_hook) for step in steps], of_hook=of_hook).numbered()


def row(step: JSONMapping, *, of_hook: bool = False) -> Row:
    """The row of a step, or of a hook's action."""
    kind = step.get("action_type") or step["type"]
    values = {**step, **(step.get("config") or {})}
    inputs = [
        Input(name, _shown(kind, name, values), required)
        for name, required in _properties(kind, of_hook)
    ]
    known = {*(one.label for one in inputs), *INNER.values(), "type", "action_type", "config"}
    rest = {name: value for name, value in step.items() if name not in known}
    inner = step.get(INNER.get(kind, "")) or []
    lists = inner if kind == PARALLEL else [inner] if kind in LOOPS else []
    return Row(kind, inputs, orjson.dumps(rest).decode(), [from_steps(one) for one in lists])


def submitted(form: MultiDict[str, str], *, of_hook: bool = False) -> StepList:
    """The rows of a form as they were filled in."""
    return _Submitted(form, of_hook).read("", 1).numbered()


class _Submitted:
    """Reads rows of a form, not many more than a workflow may have."""

    def __init__(self, form: MultiDict[str, str], of_hook: bool) -> None:
        self.form, self.of_hook, self.remaining = form, of_hook, MAX_STEPS + 1
        self.entries: dict[str, dict[str, str]] = defaultdict(dict)
        for key in form:
            path, _, name = key.rpartition(f".{DATA}.")
            if path and FIELD_NAME.fullmatch(name):
                self.entries[f"{path}."][name] = self._text(key)

    def read(self, prefix: str, depth: int) -> StepList:
        result = StepList(depth=depth, of_hook=self.of_hook)
        for index in range(forms.row_count(self._text(f"{prefix}count"), self.remaining)):
            path = f"{prefix}{index}."
            kind = self._text(f"{path}type")
            # Also of an extension that is gone: a form must not drop its step unnoticed.
            is_own = kind not in LABELS and bool(FIELD_NAME.fullmatch(kind)) and not self.of_hook
            if (kind in result.kinds or is_own) and self.remaining:
                self.remaining -= 1
                result.rows.append(self._row(path, kind, depth))
        return result

    def _row(self, path: str, kind: str, depth: int) -> Row:
        by_field = kind in RECORD_OPERATIONS and f"{path}{DATA}" not in self.form
        entries = self.entries[path] if by_field else None
        inputs = [
            Input(name, self._text(f"{path}{name}"), required)
            for name, required in _properties(kind, self.of_hook)
            if not (name == DATA and entries)
        ]
        row = Row(kind, inputs, self._text(f"{path}rest"), list(self._lists(path, kind, depth)))
        row.entries, row.as_json = entries or None, self._text(f"{path}as") == "json"
        return row

    def _lists(self, path: str, kind: str, depth: int) -> Iterator[StepList]:
        if kind in LOOPS:
            yield self.read(f"{path}steps.", depth + 1)
        elif kind == PARALLEL:
            number_sent = self._text(f"{path}branches.count")
            for number in range(forms.row_count(number_sent, MAX_BRANCHES + 1)):
                yield self.read(f"{path}branches.{number}.", depth + 1)

    def _text(self, name: str) -> str:
        return cleaned(self.form.get(name, ""))


def cleaned(text: str) -> str:
    return text.replace("\0", "").replace("\r\n", "\n").strip()


def names(steps: StepList) -> JSONObject:
    """The names that expressions of the steps may use, as the editor completes them."""
    parts = {
        row.name: {"type": str(row.label)} for one in steps.walk() for row in one.rows if row.name
    }
    return {"trigger": {}, "steps": {"parts": parts}, "now": {}, "item": {}, "index": {}}


def is_any(kind: str, name: str) -> bool:
    """Whether a property takes JSON as well as a text."""
    return name in ANY_KIND and (kind, name) != ("send_email", "body")


def is_json(text: str) -> bool:
    return checks.fault(text) is None


def _properties(kind: str, of_hook: bool) -> Iterator[tuple[str, bool]]:
    if not of_hook:
        yield "name", True
    for name in ACTIONS.get(kind) or PROPERTIES.get(kind, OWN_PROPERTIES):
        if name.lstrip("*") != INNER.get(kind):
            yield name.lstrip("*"), name.startswith("*")
    if kind != CONDITION and not of_hook:
        yield "next", False


def _shown(kind: str, name: str, values: JSONMapping) -> str:
    value = values.get(name)
    if name == "next":
        return FOLLOWING if name not in values else value or END
    if value is None:
        return ""
    is_text = isinstance(value, str) and not (is_any(kind, name) and is_json(value))
    if is_text:
        return str(value)
    return workflow_form.pretty(value) if name in LONG else orjson.dumps(value).decode()
