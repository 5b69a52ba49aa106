"""The extensions, bare; `create_app` binds them."""

from app.db import db
from app.rest.api import Api

api = Api()

__all__ = ["api", "db"]
