"""Masks, shown instead of personal data to users without access."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from app.accounts.models import PII_GROUP
from app.auth.principal import Principal
from app.collections.fields import ComputedField, Field
from app.rules import Subject
from app.types import JSONMapping

FULL = "*" * 8
LONGEST_MASK = 200
SHAPES = {
    "email": r".\*{3}@.+",
    "ssn": r"\*{3}-\*{2}-[0-9]{4}",
    "phone": r"\*{3}-\*{3}-[0-9]{4}",
    "name": r"\S\*{3}( \S\*{3})*",
}
PLACEHOLDER = re.compile(r"\{(first|last):([0-9]{1,3})\}")


def masks_for(caller: Principal | Subject) -> bool:
    """Whether the caller sees personal data masked."""
    return not caller.is_superadmin and PII_GROUP not in caller.groups


def masked(field: Field, value: object) -> Any:
    """Mask a field's value for JSON; null stays null."""
    if value is None:
        return None
    if not isinstance(value, str) or isinstance(field, ComputedField):
        return FULL
    return MASKS[field.mask_type or "full"](field, value)


def is_mask(field: Field, text: str) -> bool:
    """Whether a text looks like a masked value of the field."""
    kind = field.mask_type or "full"
    shape = _custom_shape(field.options["mask"]) if kind == "custom" else SHAPES.get(kind)
    return text == FULL or bool(shape and re.fullmatch(shape, text, re.DOTALL))


def _custom_shape(mask: str) -> str:
    parts = PLACEHOLDER.split(mask)  # text, "first" or "last", count, text, and so on
    patterns = (f".{{{int(count)}}}" for count in parts[2::3])
    texts = map(re.escape, parts[::3])
    return "".join(part for pair in zip_longest(texts, patterns, fillvalue="") for part in pair)


def problems(spec: JSONMapping) -> Iterator[tuple[str, str]]:
    """The problems of a field's mask: code and message."""
    kind, mask = spec.get("mask_type"), (spec.get("options") or {}).get("mask")
    if kind is not None and kind not in MASKS:
        yield "mask_type_invalid", f"A mask is one of: {', '.join(MASKS)}."
    if kind is not None and not spec.get("pii"):
        yield "mask_type_requires_pii", "Only fields with pii can have a mask."
    if kind == "custom" and not _is_mask(mask):
        message = f"A custom mask needs options.mask: a text with *, at most {LONGEST_MASK} long."
        yield "invalid_option", f"{message} {{first:n}} and {{last:n}} keep characters."
    if kind != "custom" and mask is not None:
        yield "invalid_option", "options.mask belongs to the mask_type custom."


def _is_mask(mask: object) -> bool:
    return isinstance(mask, str) and "*" in mask and len(mask) <= LONGEST_MASK


def _email(field: Field, value: str) -> str:
    local, separator, domain = value.rpartition("@")
    return f"{local[0]}***@{domain}" if local and separator else FULL


def _ssn(field: Field, value: str) -> str:
    return f"***-**-{tail}" if (tail := _last_digits(value)) else FULL


def _phone(field: Field, value: str) -> str:
    return f"***-***-{tail}" if (tail := _last_digits(value)) else FULL


def _last_digits(value: str) -> str:
    digits = re.sub(r"[^0-9]", "", value)
    # Fewer than five digits would be shown whole.
    return digits[-4:] if len(digits) > 4 else ""


def _name(field: Field, value: str) -> str:
    return " ".join(word[0] + "***" for word in value.split()) or FULL


def _full(field: Field, value: str) -> str:
    return FULL


def _custom(field: Field, value: str) -> str:
    mask = field.options["mask"]
    if sum(int(count) for _, count in PLACEHOLDER.findall(mask)) >= len(value):
        return FULL  # it would hide nothing

    def kept(match: re.Match[str]) -> str:
        count = int(match[2])
        return value[:count] if match[1] == "first" else value[len(value) - count :]

    return PLACEHOLDER.sub(kept, mask)


MASKS: Mapping[str, Callable[[Field, str], str]] = {
    "email": _email,
    "ssn": _ssn,
    "phone": _phone,
    "name": _name,
    "full": _full,
    "custom": _custom,
}
