"""Values of fields that come as text: cells of CSV files, parts of forms."""

from __future__ import annotations

import math

from app.collections.fields import Field, InvalidValue


def typed_value(field: Field | None, cell: str | None) -> object:
    """What a text stands for in a field; what is no number or JSON stays a text."""
    if field is None or cell is None:
        return cell
    try:
        return field.parse(cell, infinite=True)
    except InvalidValue as error:
        # What stays a text is refused by the field's validation.
        return math.inf if error.code == "number_out_of_range" else cell
