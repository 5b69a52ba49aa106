"""Finds what an expression names beyond fields: roles, groups, plans, flags, and choices.

By the parser's positions, so that a rename changes these words and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from app.rules import values
from app.rules.lexer import KEYWORDS, tokens
from app.rules.nodes import (
    OF_USER,
    PLAN,
    Call,
    Caller,
    Comparison,
    Inner,
    IsNull,
    ListOf,
    Literal,
    Membership,
    Name,
    Node,
    Old,
    RuleError,
    Sent,
    Type,
    walk,
)
from app.rules.parser import LONGEST, parse

ROLE, GROUP, CHOICE = "role", "group", "choice"
FLAG = "flag"  # PLAN is another kind
FIELD, ATTRIBUTES = "field", "attributes"
"""A name beneath `attributes`: an attribute, if what has it is a person."""
ATTRIBUTE, ACCOUNT_ATTRIBUTE = "attribute", "account attribute"
ATTRIBUTE_CHOICE, ACCOUNT_CHOICE = "attribute choice", "account attribute choice"
"""The value of such a mention is the attribute and its choice: `team=red`."""
TESTS = {"@has_role": ROLE, "@has_any_role": ROLE, "@has_group": GROUP, "@flag": FLAG}
READ = (ROLE, PLAN)
"""The kinds whose name is a value of the caller, which is compared."""
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
FURTHEST = 12  # steps of a name in a workflow
TEMPLATE = re.compile(r"\{\{(?:(?!\{\{|\}\}).)*\}\}", re.DOTALL)
BLANK = "\x02"
"""Stands for a character of a template in a filter of a workflow, as only a run knows its value."""


@dataclass(frozen=True)
class Mention:
    """What an expression names, such as a role or choice: `text[start:end]`, brackets included."""

    kind: str
    value: str
    start: int
    end: int
    path: tuple[str, ...] = ()
    """The field that a choice is compared with; of `@request.data`, its last step."""
    is_certain: bool = True
    """False where the other side may also be something else, as `coalesce(title, status) = 'x'`."""
    collection: str | None = None
    """The collection of that field; None for the one that the expression is about."""


NamesRole = Callable[[Mention], bool]
"""Whether a path leads to the role, or an attribute, of a person."""


def no_role(mention: Mention) -> bool:
    """Where no field leads to a person."""
    return False


def mentions(text: str | None, names_role: NamesRole = no_role) -> Sequence[Mention]:
    """The mentions of an expression, in its order; none if it does not parse."""
    with suppress(RuleError):
        found = {one for part in walk(parse_stored(text or "")) for one in _mentions(part)}
        read = (_of_person(one) if names_role(one) else one for one in found)
        return sorted(read, key=lambda one: one.start)
    return []


def _of_person(mention: Mention) -> Mention:
    """What a mention means if its path leads to the role, or an attribute, of a person."""
    if mention.kind == FIELD:
        return replace(mention, kind=ATTRIBUTE)
    if mention.path[-2] != ATTRIBUTES:
        return replace(mention, kind=ROLE)
    return replace(mention, kind=ATTRIBUTE_CHOICE, value=f"{mention.path[-1]}={mention.value}")


def renamed(
    text: str, kind: str, former: str, name: str, names_role: NamesRole = no_role
) -> str | None:
    """The expression with a new name of a role, group or plan; None if it cannot follow.

    That is where a function reads the caller's role, or the plan, and the text is compared with
    something else, or where the expression would become too long.
    """
    result, former = text, values.composed(former)
    for one in reversed(mentions(text, names_role)):
        if (one.kind, one.value) == (kind, former):
            source = text[one.start : one.end]
            inner = source.lstrip("( \t\r\n").rstrip(") \t\r\n")
            at = one.start + source.index(inner)
            if kind in (ATTRIBUTE, ACCOUNT_ATTRIBUTE):  # the last step of a name
                at += len(inner) - len(former)
                inner = former
            result = result[:at] + _written(name, inner) + result[at + len(inner) :]
    is_long = len(result) > max(LONGEST, len(text))
    return None if is_long or (kind in READ and _may_mean(result, kind, former)) else result


def names(text: str | None, kind: str, value: str, names_role: NamesRole = no_role) -> bool:
    """Whether an expression names a role, group, plan or flag."""
    value = values.composed(value)
    if any((one.kind, one.value) == (kind, value) for one in mentions(text, names_role)):
        return True
    return kind in READ and _may_mean(text or "", kind, value)


def parse_stored(text: str) -> Node:
    """The tree of an expression that was accepted earlier, also with templates of a workflow."""
    return parse(_blanked(text), FURTHEST, longest=None)


def _blanked(text: str) -> str:
    """The text with something as long in the place of each template."""
    result = ""
    for template in TEMPLATE.finditer(text):
        result += text[len(result) : template.start()]
        length = template.end() - template.start()
        try:
            tokens(result)
        except RuleError:  # a quote is open
            result += BLANK * length
        else:
            is_list = result.rstrip().lower().endswith(" in")
            result += ("[]" if is_list else "null").ljust(length)
    return result + text[len(result) :]


def _written(name: str, former: str) -> str:
    """A name as the former one was written, bare or in its quotes."""
    quote = former[0] if former[0] in "\"'" else '"'
    if former[0] not in "\"'" and WORD.fullmatch(name) and name not in KEYWORDS:
        return name
    escaped = name.replace("\\", "\\\\").replace(quote, f"\\{quote}")
    return f"{quote}{escaped}{quote}"


def _may_mean(text: str, kind: str, name: str) -> bool:
    """Whether the text may stand for the role or plan although `mentions` cannot tell.

    A function reads the caller's, and the expression has this name as a text elsewhere.
    """
    with suppress(RuleError):
        tree = parse_stored(text)
        plain = {id(one) for part in walk(tree) for side in _compared(part) for one in side}
        parts = list(walk(tree))
        reads = any(_read(part) == kind and id(part) not in plain for part in parts)
        clear = {(one.start, one.end) for one in mentions(text) if one.kind == kind}
        texts = [part for part in parts if isinstance(part, Literal) and part.value == name]
        return reads and any((part.start, part.end) not in clear for part in texts)
    return False


def _mentions(part: Node) -> Iterator[Mention]:
    if isinstance(part, Call) and part.name in TESTS:
        for argument in part.arguments:
            for word in argument.items if isinstance(argument, ListOf) else (argument,):
                value = (
                    word.path[0] if isinstance(word, Name | Inner) else getattr(word, "value", None)
                )
                if isinstance(value, str):
                    yield Mention(TESTS[part.name], value, word.start, word.end)
    if isinstance(part, Caller) and part.is_defined:
        prefix, _, name = part.attribute.partition(".")
        kind = ATTRIBUTE if f"{prefix}." == OF_USER else ACCOUNT_ATTRIBUTE
        yield Mention(kind, name, part.start, part.end)
    if isinstance(part, Name | Inner) and ATTRIBUTES in part.path[-2:-1]:
        inner = part.collection if isinstance(part, Inner) else None
        yield Mention(FIELD, part.path[-1], part.start, part.end, part.path, collection=inner)
    one_side, other_side = _compared(part)
    for subjects, literals in ((one_side, other_side), (other_side, one_side)):
        certain = sum(one.type is not Type.NULL for one in subjects) == 1
        for literal in literals:
            if not isinstance(literal, Literal) or literal.type is not Type.TEXT:
                continue
            for subject in subjects:
                place = (literal.value, literal.start, literal.end)
                if read := _read(subject):
                    yield Mention(read, *place, is_certain=certain)
                elif isinstance(subject, Caller) and subject.is_defined:
                    prefix, _, name = subject.attribute.partition(".")
                    is_of_user = f"{prefix}." == OF_USER
                    kind = ATTRIBUTE_CHOICE if is_of_user else ACCOUNT_CHOICE
                    value = f"{name}={literal.value}"
                    yield Mention(kind, value, *place[1:], is_certain=certain)
                elif isinstance(subject, Name | Inner | Old):
                    inner = subject.collection if isinstance(subject, Inner) else None
                    yield Mention(CHOICE, *place, subject.path, certain, inner)
                elif isinstance(subject, Sent):
                    yield Mention(CHOICE, *place, (subject.field,), certain)


def _compared(part: Node) -> tuple[Sequence[Node], Sequence[Node]]:
    """The values on both sides of a test whether they are equal."""
    sides: tuple[Sequence[Node], Sequence[Node]] = ((), ())
    if isinstance(part, Comparison) and part.operator in ("=", "!="):
        sides = ((part.left,), (part.right,))
    elif isinstance(part, Membership):
        sides = ((part.value,), part.items)
    elif isinstance(part, IsNull):
        sides = ((part.value,), ())
    elif isinstance(part, Call) and part.name in ("@contains", "nullif"):
        sides = (part.arguments[:1], part.arguments[1:2])
    one_side, other_side = sides
    return ([*_outcomes(one_side)], [*_outcomes(other_side)])


def _outcomes(nodes: Sequence[Node]) -> Iterator[Node]:
    """The values that nodes may have, of functions that choose among them."""
    chosen: dict[str, Callable[[Sequence[Node]], Sequence[Node]]] = {
        "if": lambda given: given[1:],
        "coalesce": lambda given: given,
        "nullif": lambda given: given[:1],
    }
    for node in nodes:
        if isinstance(node, Call) and node.name in chosen:
            yield from _outcomes(chosen[node.name](node.arguments))
        else:
            yield node


def _read(node: Node) -> str | None:
    """The kind of name that is a value of the caller, if the node reads one."""
    return node.attribute if isinstance(node, Caller) and node.attribute in READ else None
