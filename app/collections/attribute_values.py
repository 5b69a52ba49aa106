"""Values of attributes that somebody sends: checked by the types of fields, all at once."""

from __future__ import annotations

from app.accounts import attributes
from app.accounts.attributes import Attribute, Kind, Level
from app.auth.principal import Principal
from app.collections.definitions import parse_field
from app.collections.fields import Field, InvalidValue
from app.errors import Forbidden, InvalidValues, problem
from app.types import JSONMapping, JSONObject

LONGEST = 2000
"""Characters of a text: who signs in carries all values."""
LONG = f"Must have at most {LONGEST:,} characters."
NO_ATTRIBUTE = "There is no such attribute."
REQUIRED = "This attribute needs a value."
DENIED = "You may not write this attribute."


def level_for_account(by: Principal) -> Level:
    """How near a caller is to the account acted in."""
    if by.is_superadmin:
        return Level.SUPERADMIN
    return Level.ADMIN if by.is_admin else Level.MEMBERS


def level_for_self(by: Principal) -> Level:
    """How near a caller is to their own user."""
    return max(Level.SELF, level_for_account(by.acting_in(by.home)))


def field_of(attribute: Attribute) -> Field:
    """The field whose values an attribute has."""
    names = ("name", "type", "required", "options")
    return parse_field({name: attribute.definition[name] for name in names})


def cleaned(kind: Kind, sent: JSONMapping, level: Level, *, is_new: bool = False) -> JSONObject:
    """The values to store for what somebody at this level sends; null takes a value away.

    A new user needs the required values that the sender may write. Raises InvalidValues with all
    problems, or Forbidden (`field_denied`). What the sender does not see does not exist.
    """
    schema, problems, denied = attributes.load(kind), list[JSONObject](), list[str]()
    values: JSONObject = {}
    for name, value in sent.items():
        one, place = schema.by_name.get(name), f"attributes.{name[:80]}"
        if one is None or not (one.may_see(level) or one.may_write(level)):
            problems.append(problem(place, "unknown_field", NO_ATTRIBUTE))
        elif not one.may_write(level):
            denied.append(place)
        elif value is not None:
            try:
                values[name] = clean(field_of(one), value)
            except InvalidValue as error:
                problems.append(problem(place, error.code, str(error)))
            else:
                if values[name] == "" and one.definition["required"]:
                    problems.append(problem(place, "required", REQUIRED))
        elif one.definition["required"]:
            problems.append(problem(place, "required_null", REQUIRED))
        else:
            values[name] = None
    if is_new:
        problems += [
            problem(f"attributes.{name}", "required_missing", REQUIRED)
            for name, one in schema.by_name.items()
            if one.definition["required"] and one.may_write(level) and name not in sent
        ]
    if problems:
        raise InvalidValues(problems)
    if denied:
        details = [problem(place, "field_denied", DENIED) for place in denied]
        message = f"You may not write: {', '.join(denied)}."
        raise Forbidden(message, error="field_denied", details=details)
    return values


def replaced(kind: Kind, body: JSONMapping, level: Level, *, is_new: bool = False) -> JSONObject:
    """The body with clean `attributes`, if it sends some. Raises like `cleaned`."""
    if "attributes" not in body and not is_new:
        return {**body}
    sent = body.get("attributes", {})
    values = cleaned(kind, sent, level, is_new=is_new)
    return {**body, "attributes": values}


def clean(field: Field, value: object) -> object:
    """The JSON to store for a value that is not null. Raises InvalidValue."""
    found = field.clean(value)
    found = found if isinstance(found, list) else field.shown(found)
    if isinstance(found, str) and len(found) > LONGEST:
        raise InvalidValue("too_long", LONG)
    return found
