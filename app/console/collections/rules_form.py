"""The rules of a collection as a form: for each operation a choice, a text and boxes of fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flask import request

from app.collections.definition import ALL_FIELDS, FIELD_LISTS, is_expression
from app.console.shell import forms
from app.console.shell.excerpts import Excerpt, excerpt
from app.console.shell.forms import Form
from app.errors import AppError, problem
from app.rules import OPERATIONS

EXPRESSION = "expression"
# What each choice but an expression stands for, in the rule and in words.
PLAIN = {"closed": None, "everyone": "", "signed_in": "true"}
WORDS = {
    "closed": "closed, but to superadmins",
    "everyone": "everyone, signed in or not",
    "signed_in": "whoever has signed in to the account",
    EXPRESSION: "where an expression holds",
}
LACKING = "Write an expression, or choose somebody else."


@dataclass
class RulesForm(Form):
    """A form with the names chosen for each field list, and where in a text something is wrong."""

    lists: dict[str, Sequence[str]] = field(default_factory=dict)
    excerpts: dict[str, Excerpt] = field(default_factory=dict)

    def lacking(self) -> list[dict[str, Any]]:
        """What has to be chosen or written still."""
        found = []
        for operation in OPERATIONS:
            if self[f"{operation}_choice"] not in WORDS:
                message = f"Choose who may {operation}."
                found.append(problem(None, "invalid_option", message))
            elif self[f"{operation}_choice"] == EXPRESSION and not self[f"{operation}_rule"]:
                found.append(problem(f"{operation}_rule", "required", LACKING))
        return found

    def rules(self) -> dict[str, Any]:
        """The rules and field lists that the form stands for."""
        told: dict[str, Any] = {f"{one}_rule": self._rule(one) for one in OPERATIONS}
        return told | {f"{one}_fields": self._list(one) for one in FIELD_LISTS}

    def _rule(self, operation: str) -> str | None:
        choice = self[f"{operation}_choice"]
        return self[f"{operation}_rule"] if choice == EXPRESSION else PLAIN.get(choice)

    def _list(self, operation: str) -> Any:
        chosen = list(self.lists[operation])
        return chosen if self[f"{operation}_which"] == "some" else ALL_FIELDS

    def refused(self, error: AppError) -> RulesForm:
        """Take in what an error says, and where in the texts."""
        super().refused(error)
        for one in error.extra.get("details", ()):
            if "position" in one:
                self.excerpts[one["field"]] = excerpt(self[one["field"]], one["position"])
        return self


def of_rules(rules: Mapping[str, Any], version: int) -> RulesForm:
    """The form that stands for a collection's rules."""
    form = RulesForm({"version": str(version)})
    for operation in OPERATIONS:
        rule = rules[f"{operation}_rule"]
        form.values[f"{operation}_choice"] = choice_of(rule)
        form.values[f"{operation}_rule"] = rule if rule and is_expression(rule) else ""
    for operation in FIELD_LISTS:
        listed = rules.get(f"{operation}_fields", ALL_FIELDS)
        form.values[f"{operation}_which"] = "all" if listed == ALL_FIELDS else "some"
        form.values[f"{operation}_fields"] = ""
        form.lists[operation] = () if listed == ALL_FIELDS else listed
    return form


def sent() -> RulesForm:
    """The form as it was sent."""
    values = {"version": forms.text("version")}
    for operation in OPERATIONS:
        values[f"{operation}_choice"] = forms.text(f"{operation}_choice")
        values[f"{operation}_rule"] = expression(f"{operation}_rule")
    for operation in FIELD_LISTS:
        values[f"{operation}_which"] = forms.text(f"{operation}_which")
        values[f"{operation}_fields"] = ""
    return RulesForm(values, lists={one: _chosen(f"{one}_fields") for one in FIELD_LISTS})


def expression(name: str) -> str:
    """A text of the form, with each end of a line one character as in the browser."""
    return forms.text(name).replace("\r\n", "\n")


def _chosen(name: str) -> list[str]:
    return [one.replace("\0", "") for one in request.form.getlist(name)]


def choice_of(rule: str | None) -> str:
    """Which choice a rule is."""
    if rule is not None and is_expression(rule):
        return EXPRESSION
    return "closed" if rule is None else "signed_in" if rule else "everyone"


def tell_rule(rule: str | None) -> str:
    """A rule in words, or the expression itself."""
    choice = choice_of(rule)
    return rule or "" if choice == EXPRESSION else WORDS[choice]


def tell_list(listed: Any) -> str:
    """A field list in words."""
    return "all fields" if listed == ALL_FIELDS else ", ".join(listed) or "no fields"
