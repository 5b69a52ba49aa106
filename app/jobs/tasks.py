"""The function that RQ calls, in a worker of ours or by its stock command."""

from __future__ import annotations

from flask import has_app_context
from flask.cli import ScriptInfo

from app import config
from app.context import tracing
from app.jobs import queue, rq_queues
from app.jobs.rq_queues import Task


def run(queue_name: str, *ids: str) -> None:
    """Do what is due of a queue for these ids; safe to repeat."""
    if has_app_context():
        _run(Task(queue_name, ids))
        return
    # By the stock command, in a process that ends with the job. The application is found as Flask's
    # own command does: FLASK_APP, or wsgi.py.
    with ScriptInfo().load_app().app_context():
        try:
            _run(Task(queue_name, ids))
        finally:
            rq_queues.flush(config.current().redis_url)
            tracing.close()  # such a process ends without its exit handlers


def _run(task: Task) -> None:
    rq_queues.take(config.current().redis_url, task)
    queue.RUNNERS[task.queue].run(*task.ids)
