"""Webhook filters: conditions on the changed record, in the rule language.

Saving checks only the syntax; types are checked when a record changes, because the collection
may be created or changed later. A filter that cannot be evaluated lets the change through.
"""

from __future__ import annotations

from collections.abc import Callable

from app import clock, db, rules
from app.accounts.attributes import SEEN_BY_ADMINS
from app.auth.principal import rule_caller
from app.errors import problem
from app.events import RecordChanged
from app.rules.nodes import OF_ACCOUNT, OF_USER, Sent
from app.types import JSONMapping, JSONObject

MAX_CACHED = 1000
Attributes = tuple[frozenset[str], frozenset[str]]
"""The names of the attributes of users and accounts that admins see."""
_nodes: dict[tuple[str, int, str, frozenset[str], Attributes], rules.Node | None] = {}


def problems(text: str | None) -> list[JSONObject]:
    """The problems of a filter expression; an empty one matches every change."""
    if not text or not text.strip():
        return []
    try:
        scope = rules.Scope({}, open=True, old=True, attribute_types=SEEN_BY_ADMINS)
        node = rules.condition(text, scope)
        for part in rules.walk(node):
            if isinstance(part, rules.Name) and len(part.path) > 1:
                raise rules.RuleError("Filters cannot follow references.", part.start)
            if isinstance(part, Sent):
                raise rules.RuleError(
                    "Filters can use the record but not @request.data.", part.start
                )
    except rules.RuleError as error:
        return [problem("filter", "filter_invalid", str(error), position=error.position)]
    return []


def matches(
    text: str | None,
    event: RecordChanged,
    record: JSONMapping,
    hidden: frozenset[str],
    may_view: Callable[[RecordChanged, object], object],
) -> bool:
    """Whether a filter matches the record as the webhook may view it.

    What `@old` names is null before the record was there, or could be viewed.

    Fields that the webhook may not see, and attributes that admins no longer see, do not exist in
    its filter: deliveries would reveal them.
    """
    if not text or not text.strip():
        return True
    definition = event.definition
    key = (definition.id, definition.version, text, hidden, _seen_attributes(text))
    if key not in _nodes:
        if len(_nodes) >= MAX_CACHED:
            _nodes.clear()
        fields = {k: v for k, v in definition.scope.fields.items() if k not in hidden}
        computed = {k: v for k, v in definition.computed.items() if k not in hidden}
        scope = rules.Scope(
            fields,
            computed,
            ids=definition.id_names,
            lists=frozenset(definition.lists),
            old=True,
            attribute_types=SEEN_BY_ADMINS,
            is_stored=True,
        )
        try:
            _nodes[key] = rules.condition(text, scope)
        except rules.RuleError:
            _nodes[key] = None
    node = _nodes[key]
    if node is None:
        return True
    caller = rule_caller(event.by)
    db.check_time()  # many filters of many records run in one transaction
    if rules.names_old(node):
        old = event.previous if record is not event.previous else record
        is_shown = old is record or (old is not None and may_view(event, old))
        record = {**record, rules.OLD: old if is_shown else {}}
    context = rules.Context(record, caller, now=clock.now(), budget=rules.Budget())
    try:
        return rules.holds(node, context)
    except rules.OverBudget:
        return True


def _seen_attributes(text: str) -> Attributes:
    if "attributes" not in text:
        return frozenset(), frozenset()
    return frozenset(SEEN_BY_ADMINS(OF_USER)), frozenset(SEEN_BY_ADMINS(OF_ACCOUNT))
