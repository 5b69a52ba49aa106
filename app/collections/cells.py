"""Values of fields that come as text: cells of CSV files, parts of forms."""

from __future__ import annotations

import math

from app.collections.fields import (
    BooleanField,
    Field,
    FileField,
    InvalidValue,
    JsonField,
    NumberField,
)
from app.errors import Malformed
from app.web import json_input


def typed_value(field: Field | None, cell: str | None) -> object:
    """What a text stands for in a field; what is no number or JSON stays a text."""
    # Invalid numbers and JSON stay texts, which the field's validation refuses.
    try:
        if cell is not None and isinstance(field, NumberField | BooleanField):
            return field.from_text(cell)
        if cell is not None and isinstance(field, JsonField | FileField):
            return json_input.loads(cell.encode(), infinite=True)
    except InvalidValue as error:
        return math.inf if error.code == "number_out_of_range" else cell
    except Malformed:
        pass
    return cell
