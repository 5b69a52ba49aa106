"""The rule language: rules, filters, computed fields and conditions of workflows.

One parser makes a tree (`parser`, `nodes`), one check gives every node a type or says where and why
it cannot (`check`, `matching`), and two back ends agree on what it means: `sql` for the database
and `evaluate` for Python, which SQLite borrows where SQL would nest too deep (`depth`, `program`).
`partial_eval` takes out what is decided by who asks; `explain` says which part decided.

Grammar:

    expr    = and (("||" | "OR") and)*         cmp  = sum [op sum | [NOT] IN list | IS [NOT] NULL]
    and     = not (("&&" | "AND") not)*        op   = "=" "!=" "<" "<=" ">" ">=" "~" "!~"
    not     = ("!" | "NOT") not | cmp          list = "[" items "]" | "(" items ")"
    sum     = product (("+" | "-") product)*   atom = number | 'text' | "text" | true | false
    product = atom (("*" | "/" | "%") atom)*          | null | name | @name | call | any
                                                      | "(" expr ")" | "-" atom
    name    = identifier ("." identifier)*
    any     = ("@any" | "@count") "(" collection "," expr ")" | "@rule" "(" identifier ")"

Words in capitals are written so. In quotes a backslash stands for itself, but before a quote or
another backslash it gives that character.

Names are fields; a dotted name follows references, at most three. `@request.auth.id`, `.email`,
`.role` and `.account_id` are the caller's; `.mfa` is true in sessions that passed a second factor,
else false. `.attributes.<name>` are the user's attributes, `@account.attributes.<name>` those of
the account acted in: null where there is no value. `@account.plan` is its plan, null without one;
`@flag(name)` tells whether it has a flag. `@request.data.<field>` is what the body says, `@now` the
present moment.

`@any(collection, condition)` is true where a record of that collection, in the same account, meets
the condition; `@count` is the number of such records. Inside, names are those records' fields,
`@record.<name>` is one of the record that is judged and `@outer.<name>`, in the inner one of two,
one of the record that the outer one looks at. Rules look at all records of the account, filters at
those that the caller may list.

`@rule(name)` stands for a fragment, which rules share: the condition that has this name.

In update rules, and in filters of webhooks and workflows, `@old.<name>` is a field as it was before
the change, null before a record was there, and `@changed(name)` tells whether it has another value.
An update rule that names either is judged once, on the change; others on the record as it was and
on the new one.

Meaning:

- Conditions are true or false, never null. `=`, `<`, `<=`, `>`, `>=`, `~` and IN are false where
  an operand is null; `!=`, `!~` and NOT IN are their exact negations. Against the literal null, `=`
  and `!=` test for null. A boolean that is null counts as false where a condition is needed.
- The empty text, compared with `@request.auth.id`, equals nobody having signed in; in lists of IN,
  too.
- Numbers are whole ones of 64 bits or IEEE doubles. Arithmetic is that of the numbers as they are
  written, in decimal, and its result the nearest such number: 0.1 + 0.2 = 0.3. `/` is true
  division, `%` has the sign of its left side; what has no result is null. `round` rounds halves
  away from zero.
- `~` compares the whole text, ASCII case aside; `%` is any run of characters, `\\%` a percent
  sign and `\\\\` a backslash.
- Texts that are written out are read in Unicode's form NFC, in which values are stored.
- Text compares by code point; `upper`, `lower` and `~` know the case of ASCII letters only.
- `@contains(field, text)` is true where a multi_select has the text, else false.
- A name that goes through a list of references or users means any of its entries, with every
  operator: `members.name != "Ann"` is true where one differs, `!(members.name = "Ann")` where none
  is Ann. The list itself compares by its ids, so that `members = x` is `@contains(members, x)`.
- Dates and moments compare with ISO texts that are written out; a date is the first moment of its
  day in UTC. `date_diff(a, b, unit)` is a - b: with parts of a unit for days, hours, minutes and
  seconds, whole for months and years; `date_add` keeps the day, or takes a shorter month's last.
- A function is null where an argument is; `concat` takes null for nothing and writes numbers with
  all their digits; `if`, `coalesce` and `nullif` choose. `substring(text, start, length)` counts
  from 1.

To add a function, see `functions`. The tests compare both back ends over all of them.
"""

from app.rules.check import ANYTHING, Scope, condition, value
from app.rules.cost import Budget, OverBudget
from app.rules.evaluate import OLD, UNKNOWN, Context, Subject, evaluate, holds
from app.rules.explain import Clause, deciding, surely, undecided
from app.rules.lexer import KEYWORDS, UnfitText, filled
from app.rules.nodes import (
    Fragment,
    Inner,
    Name,
    Node,
    Old,
    RuleError,
    Sent,
    Subquery,
    Type,
    fixed_fields,
    goes_through_list,
    looks_elsewhere,
    names_old,
    required_fields,
    subqueries,
    unguarded,
    walk,
)
from app.rules.parser import parse
from app.rules.partial_eval import (
    decided_alone,
    depends_on_caller,
    depends_on_time,
    partial_evaluate,
    truth,
)
from app.rules.values import composed, items, spellings

OPERATIONS = ("list", "view", "create", "update", "delete")
"""The operations for each of which a collection has a rule."""

__all__ = [
    "ANYTHING",
    "KEYWORDS",
    "OLD",
    "OPERATIONS",
    "UNKNOWN",
    "Budget",
    "Clause",
    "Context",
    "Fragment",
    "Inner",
    "Name",
    "Node",
    "Old",
    "OverBudget",
    "RuleError",
    "Scope",
    "Sent",
    "Subject",
    "Subquery",
    "Type",
    "UnfitText",
    "composed",
    "condition",
    "decided_alone",
    "deciding",
    "depends_on_caller",
    "depends_on_time",
    "evaluate",
    "filled",
    "fixed_fields",
    "goes_through_list",
    "holds",
    "items",
    "looks_elsewhere",
    "names_old",
    "parse",
    "partial_evaluate",
    "required_fields",
    "spellings",
    "subqueries",
    "surely",
    "truth",
    "undecided",
    "unguarded",
    "value",
    "walk",
]
