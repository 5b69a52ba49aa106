"""The extensions, bare; `create_app` binds them."""

from flask_migrate import Migrate

from app.db import db
from app.rest import Api

api = Api()
migrate = Migrate()

__all__ = ["api", "db", "migrate"]
