"""Names of roles, groups, attributes, plans and flags after a manifest, and who follows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from app.accounts import attributes, names, sso_settings
from app.accounts.attributes import Kind
from app.accounts.names import Known
from app.accounts.plans import service as plans
from app.accounts.plans import stored
from app.collections import attribute_definitions, definitions, expression_names
from app.collections.attribute_definitions import Change
from app.collections.definitions import Definition
from app.collections.population import Terms
from app.manifest.definitions import Comparison
from app.rules import named
from app.rules.named import ROLE
from app.rules.nodes import PLAN, asks_for_plan, walk
from app.types import JSONMapping


@dataclass(frozen=True)
class NameChanges:
    """The resulting names, those of renamed roles by former ones, and changed attributes."""

    known: Known
    renames: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[Kind, Change] = field(default_factory=dict)
    plans: plans.Change = field(default_factory=lambda: plans.Change({}, {}))

    @property
    def terms(self) -> tuple[Terms, Terms] | None:
        """The plans before and after, if what rules ask of them changes."""
        before, after = self.plans.before, self.plans.after
        flags = [{name: set(one.flags) for name, one in found.items()} for found in (before, after)]
        if flags[0] == flags[1]:
            return None
        return Terms(before), Terms(after, self.plans.renamed)

    @property
    def pairs(self) -> Sequence[tuple[str, str, str]]:
        """The renames: kind, former and new name."""
        kinds = {ROLE: self.renames, PLAN: self.plans.renamed}
        return [(kind, old, new) for kind, found in kinds.items() for old, new in found.items()]

    @contextmanager
    def expected(self) -> Iterator[None]:
        """Check expressions against these names."""
        defined = {kind: [*_defined(change)] for kind, change in self.attributes.items()}
        with names.expecting(self.known), attributes.expecting(defined):
            yield

    def followed(self, definition: Definition) -> Definition:
        """Return a definition whose rules use the new names.

        A rule that cannot be rewritten stays as it is, and is refused later.
        """
        texts = expression_names.rules_and_rights(definition)
        followed, names_role = dict(texts), expression_names.role_test(definition)
        for kind, former, name in self.pairs:
            for place, text in followed.items():
                if named.names(text, kind, former, names_role):
                    followed[place] = named.renamed(text, kind, former, name, names_role) or text
        changed = followed != texts
        return expression_names.with_texts(definition, followed) if changed else definition

    def counted(self, definition: Definition) -> Definition:
        """Return a definition whose rules name attributes as values are stored at present."""
        texts = expression_names.rules_and_rights(definition)
        fragments, names_role = dict(definition.fragments), expression_names.role_test(definition)
        for kind, change in self.attributes.items():
            for former, name in change.renamed.items():
                mention = (attribute_definitions.MENTIONS[kind], name, former, names_role)
                for found in (texts, fragments):
                    found |= {
                        key: named.renamed(one, *mention) or one for key, one in found.items()
                    }
        return replace(expression_names.with_texts(definition, texts), fragments=fragments)

    def affects(self, definition: Definition) -> bool:
        """Whether rules of a definition name a renamed role by either name, or ask for plans."""
        names_role = expression_names.role_test(definition)
        nodes = (node for node in definition.conditions.values() if node and self.terms)
        if any(asks_for_plan(part) for node in nodes for part in walk(node)):
            return True
        return any(
            named.names(text, kind, name, names_role)
            for kind, *pair in self.pairs
            for name in pair
            for text in expression_names.rules_and_rights(definition).values()
        )


def find(content: JSONMapping) -> NameChanges:
    """Return the names that there are once a manifest is applied."""
    roles, renames = sso_settings.role_names(), dict[str, str]()
    for item in content.get("roles", ()):
        name, former = item["name"], item.get("rename_from")
        if item.get("removed"):
            roles.discard(name)
            continue
        if former in roles and name not in roles:
            renames[former] = name
            roles.discard(former)
        roles.add(name)
    groups = {
        item["name"]
        for account in content.get("accounts", {}).values()
        for item in account.get("groups", ())
        if not item.get("removed")
    }
    changed = plans.compare(content.get("plans", {}), stored.load(), whole=False)
    flags = stored.all_flags(changed.after)
    known = Known(frozenset(roles), frozenset(groups), frozenset(changed.after), flags)
    listed = {kind: content.get("attributes", {}).get(kind.value) for kind in Kind}
    planned = {
        kind: attribute_definitions.plan(kind, body) for kind, body in listed.items() if body
    }
    sound = {kind: change for kind, change in planned.items() if not change.problems}
    return NameChanges(known, renames, sound, changed)


def _defined(change: Change) -> Iterator[JSONMapping]:
    """Yield the resulting attributes, renamed ones also by the names that they have now."""
    former = {name: old for old, name in change.renamed.items()}
    for one in change.definitions:
        yield one
        if one["name"] in former:
            yield {**one, "name": former[one["name"]]}


@contextmanager
def future(comparison: Comparison) -> Iterator[None]:
    """Use the resulting definitions in the block; those of removed collections are closed."""
    resulting = {} if comparison.problems else comparison.definitions()
    for _, row in comparison.removed:
        resulting[row.name_key] = replace(definitions.from_row(row), rules={})
    with definitions.override(resulting):
        yield
