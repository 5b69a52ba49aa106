"""The application for in-process measurements."""

import logging

import structlog
from flask import Flask

from app.config import Config
from tests import conftest


def application(settings: Config) -> Flask:
    """Create the application; logs errors only."""
    app = conftest.make_app(settings)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return app
