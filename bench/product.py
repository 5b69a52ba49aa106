"""The product as what measures it within its own process takes it."""

import logging

import structlog
from flask import Flask

from app.config import Config
from tests import conftest


def application(settings: Config) -> Flask:
    """The application, which logs what goes wrong alone."""
    app = conftest.make_app(settings)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return app
