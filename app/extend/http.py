"""Requests to other services, to checked addresses."""

from app.extensions.http import HttpError, HttpResponse, get, post, request

__all__ = ["HttpError", "HttpResponse", "get", "post", "request"]
