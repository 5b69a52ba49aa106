"""The rules of a collection as a form: a choice, an expression and field lists per operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flask import request

from app.collections.definitions import ALL_FIELDS, FIELD_LISTS, is_expression
from app.console.shell import forms
from app.console.shell.checks import Excerpt, excerpt
from app.console.shell.forms import Form
from app.errors import AppError, problem
from app.rules import OPERATIONS
from app.types import JSONMapping, JSONObject
from app.web.languages import gettext, lazy_gettext

EXPRESSION = "expression"
# The rule of each choice, except for expressions.
RULE_BY_CHOICE = {"closed": None, "everyone": "", "signed_in": "true"}
LABELS = {
    "closed": lazy_gettext("nobody but superadmins"),
    "everyone": lazy_gettext("everyone, signed in or not"),
    "signed_in": lazy_gettext("users of the account"),
    EXPRESSION: lazy_gettext("whoever an expression allows"),
}
EXPRESSION_REQUIRED = lazy_gettext("Enter an expression, or choose another option.")


@dataclass(frozen=True)
class OperationTexts:
    """The heading, labels and messages of an operation in the editor."""

    title: str
    who: str
    expression: str
    choose: str
    fields: str = ""


OPERATION_TEXTS = {
    "list": OperationTexts(
        title=lazy_gettext("List"),
        who=lazy_gettext("Who may list"),
        expression=lazy_gettext("Expression to list by"),
        fields=lazy_gettext("Fields for list"),
        choose=lazy_gettext("Choose who may list."),
    ),
    "view": OperationTexts(
        title=lazy_gettext("View"),
        who=lazy_gettext("Who may view"),
        expression=lazy_gettext("Expression to view by"),
        fields=lazy_gettext("Fields for view"),
        choose=lazy_gettext("Choose who may view."),
    ),
    "create": OperationTexts(
        title=lazy_gettext("Create"),
        who=lazy_gettext("Who may create"),
        expression=lazy_gettext("Expression to create by"),
        fields=lazy_gettext("Fields for create"),
        choose=lazy_gettext("Choose who may create."),
    ),
    "update": OperationTexts(
        title=lazy_gettext("Update"),
        who=lazy_gettext("Who may update"),
        expression=lazy_gettext("Expression to update by"),
        fields=lazy_gettext("Fields for update"),
        choose=lazy_gettext("Choose who may update."),
    ),
    "delete": OperationTexts(
        title=lazy_gettext("Delete"),
        who=lazy_gettext("Who may delete"),
        expression=lazy_gettext("Expression to delete by"),
        choose=lazy_gettext("Choose who may delete."),
    ),
}


@dataclass
class RulesForm(Form):
    """A form with the selected field lists, and excerpts of invalid expressions."""

    lists: dict[str, Sequence[str]] = field(default_factory=dict)
    excerpts: dict[str, Excerpt] = field(default_factory=dict)

    def missing(self) -> list[JSONObject]:
        """Problems for choices and expressions that are missing."""
        problems = []
        for operation in OPERATIONS:
            if self[f"{operation}_choice"] not in LABELS:
                message = str(OPERATION_TEXTS[operation].choose)
                problems.append(problem(None, "invalid_option", message))
            elif self[f"{operation}_choice"] == EXPRESSION and not self[f"{operation}_rule"]:
                problems.append(problem(f"{operation}_rule", "required", str(EXPRESSION_REQUIRED)))
        return problems

    def rules(self) -> JSONObject:
        """The rules and field lists that the form submits."""
        rules: JSONObject = {f"{operation}_rule": self._rule(operation) for operation in OPERATIONS}
        return rules | {f"{operation}_fields": self._list(operation) for operation in FIELD_LISTS}

    def _rule(self, operation: str) -> str | None:
        choice = self[f"{operation}_choice"]
        return self[f"{operation}_rule"] if choice == EXPRESSION else RULE_BY_CHOICE.get(choice)

    def _list(self, operation: str) -> object:
        selected = list(self.lists[operation])
        return selected if self[f"{operation}_which"] == "some" else ALL_FIELDS

    def with_error(self, error: AppError) -> RulesForm:
        """The form with the messages of an error, and excerpts of the expressions."""
        super().with_error(error)
        for detail in error.extra.get("details", ()):
            if "position" in detail:
                self.excerpts[detail["field"]] = excerpt(self[detail["field"]], detail["position"])
        return self


def from_rules(rules: JSONMapping, version: int) -> RulesForm:
    form = RulesForm({"version": str(version)})
    for operation in OPERATIONS:
        rule = rules[f"{operation}_rule"]
        form.values[f"{operation}_choice"] = choice_of(rule)
        form.values[f"{operation}_rule"] = rule if rule and is_expression(rule) else ""
    for operation in FIELD_LISTS:
        fields = rules.get(f"{operation}_fields", ALL_FIELDS)
        form.values[f"{operation}_which"] = "all" if fields == ALL_FIELDS else "some"
        form.values[f"{operation}_fields"] = ""
        form.lists[operation] = () if fields == ALL_FIELDS else fields
    return form


def submitted() -> RulesForm:
    values = {"version": forms.text("version")}
    for operation in OPERATIONS:
        values[f"{operation}_choice"] = forms.text(f"{operation}_choice")
        # With the line ends that the browser counts.
        values[f"{operation}_rule"] = forms.text(f"{operation}_rule").replace("\r\n", "\n")
    for operation in FIELD_LISTS:
        values[f"{operation}_which"] = forms.text(f"{operation}_which")
        values[f"{operation}_fields"] = ""
    lists: dict[str, Sequence[str]] = {
        action: [one.replace("\0", "") for one in request.form.getlist(f"{action}_fields")]
        for action in FIELD_LISTS
    }
    return forms.show_errors_in(RulesForm(values, lists=lists))


def choice_of(rule: str | None) -> str:
    if rule is not None and is_expression(rule):
        return EXPRESSION
    return "closed" if rule is None else "signed_in" if rule else "everyone"


def describe_rule(rule: str | None) -> str:
    """A rule in words, or its expression."""
    choice = choice_of(rule)
    return rule or "" if choice == EXPRESSION else str(LABELS[choice])


def describe_fields(fields: Any) -> str:
    """A field list in words."""
    if fields == ALL_FIELDS:
        return gettext("all fields")
    return ", ".join(fields) or gettext("no fields")
