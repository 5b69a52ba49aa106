"""The WSGI entry point: `gunicorn wsgi:app`."""

# ruff: noqa: E402
import gc

gc.disable()  # nothing of what is loaded here is garbage

import os
import sys

import structlog
from sqlalchemy.exc import SQLAlchemyError

from app import create_app
from app.config import ConfigError
from app.extensions.registry import LoadError

IS_COMMAND = "FLASK_RUN_FROM_CLI" in os.environ  # commands such as doctor say it themselves

try:
    app = create_app()
    if not IS_COMMAND:
        app.load()
    from app.auth import bootstrap
    from app.db import engine
    from app.web import concurrency

    concurrency.init_app(app)
    if not IS_COMMAND:
        from app.auth.guard import fair_turns

        fair_turns.init_app(app)
    with app.app_context():
        if not IS_COMMAND and (refusal := engine.pooler_refusal()):
            sys.exit(f"The database cannot be used: {refusal}")
        bootstrap.create_from_settings()
except LoadError as error:
    sys.exit(str(error))
except ConfigError as error:
    sys.exit(f"The settings are not usable:\n{error}")
except SQLAlchemyError:
    structlog.get_logger().warning("no superadmin made yet: the database is not ready")

gc.freeze()  # or each process would look through it all, and have a copy of its own
gc.enable()
