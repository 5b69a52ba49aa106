"""Imports all that the application loads later, for processes that are forks of this one."""

from app import routes

routes()
