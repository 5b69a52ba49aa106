"""From tokens to a tree. Each function's docstring is the grammar rule that it parses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from app.rules import values
from app.rules.lexer import Token, tokens
from app.rules.nodes import (
    OF_ACCOUNT,
    OF_USER,
    PLAN,
    Arithmetic,
    Call,
    Caller,
    Comparison,
    Fragment,
    Inner,
    IsNull,
    Junction,
    ListOf,
    Literal,
    Membership,
    Name,
    Node,
    Not,
    Now,
    Old,
    RuleError,
    Sent,
    Subquery,
    Type,
)

LONGEST = 2000
MAX_NODES = 200
DEEPEST = 32
MOST_NESTED = 2  # of `@any` and `@count`
FURTHEST = 3  # references that a dotted name may follow
COMPARISONS = ("=", "!=", "<=", ">=", "<", ">", "~", "!~")
CALLER = {
    "id": Type.TEXT,
    "email": Type.TEXT,
    "role": Type.TEXT,
    "account_id": Type.TEXT,
    "mfa": Type.BOOLEAN,
}
"""The attributes of `@request.auth` and their types."""
ABOUT_CALLER = {**CALLER, PLAN: Type.TEXT}
"""With that of the account acted in."""
OUTSIDE = {
    "@record": (1, "@record stands only in @any and @count. Elsewhere, the field's name will do."),
    "@outer": (2, "@outer stands only in an @any or @count within another one."),
}
"""Records around, and in how many `@any` they have a name."""
HINTS = {"==": "=", "and": "AND", "or": "OR", "not": "NOT", "in": "IN", "is": "IS"}


def parse(text: str, furthest: int = FURTHEST, longest: int | None = LONGEST) -> Node:
    """The tree of an expression whose dotted names go no further. Raises RuleError."""
    if longest is not None and len(text) > longest:
        raise RuleError(f"An expression has at most {longest} characters.", longest)
    return _Parser(tokens(text), furthest).whole()


class _Parser:
    def __init__(self, found: Sequence[Token], furthest: int) -> None:
        self.tokens, self.furthest = found, furthest
        self.index = 0
        self.inner: list[str] = []  # the collections of `@any` around
        self.depth = 1
        self.count = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.index]

    def whole(self) -> Node:
        """The whole text: expr"""
        tree = self.expr()
        if self.next.kind != "end":
            raise self.wrong("an operator or the end")
        return tree

    def expr(self) -> Node:
        """expr = and (("||" | "OR") and)*"""
        return self.junction("or", ("||", "OR"), self.conjunction)

    def conjunction(self) -> Node:
        """and = not (("&&" | "AND") not)*"""
        return self.junction("and", ("&&", "AND"), self.negation)

    def junction(self, operator: str, signs: Sequence[str], part: Callable[[], Node]) -> Node:
        """part (sign part)*"""
        parts = [part()]
        while self.accept(*signs):
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        return self.made(Junction(parts[0].start, parts[-1].end, operator, tuple(parts)))

    def negation(self) -> Node:
        """not = ("!" | "NOT") not | cmp"""
        if not (sign := self.accept("!", "NOT")):
            return self.comparison()
        with self.deeper():
            part = self.negation()
        return self.made(Not(sign.start, part.end, part))

    def comparison(self) -> Node:
        """cmp = sum [ op sum | [NOT] IN list | IS [NOT] NULL ]"""
        left = self.sum()
        if sign := self.accept(*COMPARISONS):
            right = self.sum()
            return self.made(Comparison(left.start, right.end, sign.value, left, right))
        if self.accept("IS"):
            negated = bool(self.accept("NOT"))
            null = self.accept("NULL", "null") or self.fail("NULL")
            return self.made(IsNull(left.start, null.end, left, negated))
        if self.accept("NOT"):
            if not self.accept("IN"):
                self.fail("IN")
            return self.membership(left, negated=True)
        return self.membership(left, negated=False) if self.accept("IN") else left

    def membership(self, value: Node, *, negated: bool) -> Node:
        """list = "[" items "]" | "(" items ")" """
        opening = self.accept("[", "(") or self.fail("a list")
        with self.deeper():
            items, end = self.items("]" if opening.value == "[" else ")")
        return self.made(Membership(value.start, end, value, items, negated))

    def items(self, closing: str) -> tuple[tuple[Node, ...], int]:
        """items = [ expr ("," expr)* ]"""
        found: list[Node] = []
        if not (end := self.accept(closing)):
            found.append(self.expr())
            while self.accept(","):
                found.append(self.expr())
            end = self.accept(closing) or self.fail(f"`,` or `{closing}`")
        return tuple(found), end.end

    def sum(self) -> Node:
        """sum = product (("+" | "-") product)*"""
        return self.chain(("+", "-"), self.product)

    def product(self) -> Node:
        """product = atom (("*" | "/" | "%") atom)*"""
        return self.chain(("*", "/", "%"), self.atom)

    def chain(self, signs: Sequence[str], part: Callable[[], Node]) -> Node:
        """part (sign part)*, from left to right"""
        tree = part()
        while sign := self.accept(*signs):
            right = part()
            tree = self.made(Arithmetic(tree.start, right.end, sign.value, tree, right))
        return tree

    def atom(self) -> Node:
        """atom = number | text | true | false | null | name | @name | call | "(" expr ")" | "-" atom"""  # noqa: E501
        token = self.next
        if token.kind == "number":
            return self.number(self.advance())
        if token.kind == "text":
            self.advance()
            return self.made(Literal(token.start, token.end, token.value, type=Type.TEXT))
        if self.accept("true", "false"):
            value = token.value == "true"
            return self.made(Literal(token.start, token.end, value, type=Type.BOOLEAN))
        if self.accept("null", "NULL"):
            return self.made(Literal(token.start, token.end, None, type=Type.NULL))
        if self.accept("("):
            with self.deeper():
                tree = self.expr()
            end = self.accept(")") or self.fail("`)`")
            return replace(tree, start=token.start, end=end.end)
        if self.accept("-"):
            return self.negative(token)
        if token.kind == "name":
            return self.context() if token.value.startswith("@") else self.name()
        raise self.wrong("a value")

    def number(self, digits: Token, sign: Token | None = None) -> Node:
        """The literal of digits with the sign before them."""
        start = (sign or digits).start
        written = "-" + digits.value if sign else digits.value
        value = values.number(written)
        if value is None:
            raise RuleError("This number is out of range.", start)
        exact = values.EXACT.create_decimal(written)
        exact_or_none = None if exact == values.decimal(value) else exact
        return self.made(Literal(start, digits.end, value, exact_or_none, type=Type.NUMBER))

    def negative(self, sign: Token) -> Node:
        if self.next.kind == "number":
            return self.number(self.advance(), sign)
        with self.deeper():
            part = self.atom()
        zero = Literal(sign.start, sign.start, 0, type=Type.NUMBER)
        return self.made(Arithmetic(sign.start, part.end, "-", zero, part))

    def name(self) -> Node:
        """name = identifier ("." identifier)*; call = identifier "(" items ")" """
        first = self.advance()
        if self.next.value == "(" and self.next.kind == "symbol":
            return self.call(first)
        path, end = self.path(first)
        return self.field(first, end, path, len(self.inner))

    def field(self, first: Token, end: int, path: tuple[str, ...], depth: int) -> Node:
        """A field of the record, or of the one that `@any` looks at so deep."""
        if len(path) > self.furthest + 1:
            raise RuleError(f"A name follows at most {self.furthest} references.", first.start)
        if not depth:
            return self.made(Name(first.start, end, path))
        return self.made(Inner(first.start, end, path, depth, self.inner[depth - 1]))

    def path(self, first: Token) -> tuple[tuple[str, ...], int]:
        """identifier ("." identifier)*"""
        steps, end = [first.value], first.end
        while self.accept("."):
            token = self.next
            if token.kind not in ("name", "keyword") or token.value.startswith("@"):
                self.fail("a name")
            steps.append(token.value)
            end = token.end
            self.index += 1
        return tuple(steps), end

    def call(self, name: Token) -> Node:
        """call = name "(" [ argument ("," argument)* ] ")"; argument = list | expr"""
        self.accept("(")
        arguments: list[Node] = []
        with self.deeper():
            while not (end := self.accept(")")):
                if arguments and not self.accept(","):
                    self.fail("`,` or `)`")
                arguments.append(self.argument())
        return self.made(Call(name.start, end.end, name.value, tuple(arguments)))

    def fragment(self, function: Token) -> Node:
        """fragment = "@rule" "(" identifier ")" """
        self.accept("(")
        name = self.next
        if name.kind != "name" or name.value.startswith("@"):
            raise self.wrong("the name of a fragment")
        self.advance()
        if self.inner:
            raise RuleError("@rule cannot be used in @any and @count.", function.start)
        end = self.accept(")") or self.fail("`)`")
        return self.made(Fragment(function.start, end.end, name.value))

    def subquery(self, function: Token) -> Node:
        """subquery = ("@any" | "@count") "(" identifier "," expr ")" """
        self.accept("(")
        collection = self.next
        if collection.kind != "name" or collection.value.startswith("@"):
            raise self.wrong("the name of a collection")
        self.advance()
        if not self.accept(","):
            raise self.wrong("`,` and a condition")
        self.inner.append(collection.value)
        depth = len(self.inner)
        if depth > MOST_NESTED:
            message = f"@any and @count are nested at most {MOST_NESTED} deep."
            raise RuleError(message, function.start)
        with self.deeper():
            condition = self.expr()
        end = self.accept(")") or self.fail("`)`")
        self.inner.pop()
        named = (function.value[1:], collection.value)
        place = collection.start
        return self.made(Subquery(function.start, end.end, *named, condition, depth, place))

    def argument(self) -> Node:
        """argument = "[" items "]" | expr"""
        if not (opening := self.accept("[")):
            return self.expr()
        items, end = self.items("]")
        return self.made(ListOf(opening.start, end, items))

    def context(self) -> Node:
        """@name = "@now" | "@request.auth." attribute | "@request.data." field | call | subquery
        | fragment | ("@record" | "@outer" | "@old") "." name
        """
        first = self.advance()
        if self.next.value == "(" and self.next.kind == "symbol":
            if first.value == "@rule":
                return self.fragment(first)
            is_subquery = first.value in ("@any", "@count")
            return self.subquery(first) if is_subquery else self.call(first)
        path, end = self.path(first)
        if path[0] == "@old" and len(path) > 1:
            if len(path) > 2:
                raise RuleError("@old follows no references.", first.start)
            return self.made(Old(first.start, end, path[1:]))
        if path[0] in OUTSIDE and len(path) > 1:
            needed, message = OUTSIDE[path[0]]
            if len(self.inner) < needed:
                raise RuleError(message, first.start)
            depth = len(self.inner) - 1 if path[0] == "@outer" else 0
            return self.field(first, end, path[1:], depth)
        if path == ("@now",):
            return self.made(Now(first.start, end, type=Type.DATETIME))
        if path[:2] == ("@request", "data") and len(path) == 3:
            return self.made(Sent(first.start, end, path[2]))
        if path[:2] == ("@request", "auth") and len(path) == 3 and path[2] in CALLER:
            return self.made(Caller(first.start, end, path[2], type=CALLER[path[2]]))
        if path[:3] == ("@request", "auth", "attributes") and len(path) == 4:
            return self.made(Caller(first.start, end, OF_USER + path[3]))
        if path == ("@account", "plan"):
            return self.made(Caller(first.start, end, PLAN, type=Type.TEXT))
        if path[:2] == ("@account", "attributes") and len(path) == 3:
            return self.made(Caller(first.start, end, OF_ACCOUNT + path[2]))
        known = ", ".join(
            f"@request.auth.{attribute}" for attribute in (*CALLER, "attributes.<name>")
        )
        of_account = "@account.plan, @account.attributes.<name>"
        message = f"Expected {known}, {of_account}, @request.data.<field> or @now."
        raise RuleError(message, first.start)

    def accept(self, *values: str) -> Token | None:
        """The next token, taken, if it is one of these keywords or symbols."""
        token = self.next
        if token.kind in ("symbol", "keyword") and token.value in values:
            self.index += 1
            return token
        return None

    def advance(self) -> Token:
        """The next token, taken."""
        self.index += 1
        return self.tokens[self.index - 1]

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Parse one level deeper: in brackets, or behind a sign that applies to what follows."""
        self.depth += 1
        if self.depth > DEEPEST:
            message = f"An expression is nested at most {DEEPEST} deep."
            raise RuleError(message, self.next.start)
        yield
        self.depth -= 1

    def made(self, node: Node) -> Node:
        self.count += 1
        if self.count > MAX_NODES:
            raise RuleError(f"An expression has at most {MAX_NODES} parts.", node.start)
        return node

    def fail(self, expected: str) -> Token:
        raise self.wrong(expected)

    def wrong(self, expected: str) -> RuleError:
        token = self.next
        hint = HINTS.get(str(token.value)) if token.kind == "name" else None
        if token.value == "=" and self.index and self.tokens[self.index - 1].value == "=":
            hint = "="
        suffix = f" Did you mean `{hint}`?" if hint else ""
        return RuleError(f"Expected {expected}, found {token}.{suffix}", token.start)
