"""What is around every request: the WSGI application, errors, logs, limits, caching."""
