"""What pages show of files."""

from __future__ import annotations

from app.files import content, thumbnails
from app.files.models import StoredFile
from app.types import JSONMapping, JSONObject


def files_in(value: object) -> list[JSONObject]:
    """The files of a field's value; none if it is masked."""
    if isinstance(value, dict):
        return [value]
    return value if isinstance(value, list) else []


def describe(file: StoredFile) -> JSONObject:
    """An upload as the value of a field describes it."""
    return {"id": file.id, "name": file.name, "size": file.size, "mime_type": file.mime_type}


def has_thumbnail(file: JSONMapping) -> bool:
    """Whether a file is an image that thumbnails are made of."""
    is_raster = file.get("mime_type") in content.RASTER
    return is_raster and int(file["size"]) <= thumbnails.MAX_BYTES
