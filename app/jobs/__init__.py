"""Background jobs, run at least once.

Features register theirs by `@jobs.job` and `@jobs.periodic`; what is purged when:
docs/retention.md#what-the-service-does-and-deletes-by-itself.
"""

from app.jobs.queue import (
    ATTEMPTS,
    IN_FLIGHT_SECONDS,
    INSTANCE,
    KINDS,
    QUEUE,
    TABLE,
    Handler,
    Job,
    JobState,
    Kind,
    announce,
    announce_on_commit,
    delete_failed,
    discard_enqueued,
    enqueue,
    is_redis_up,
    job,
    kinds,
    periodic,
    purge,
    queue_of,
    redis_client,
    retry,
    task,
)

__all__ = [
    "ATTEMPTS",
    "INSTANCE",
    "IN_FLIGHT_SECONDS",
    "KINDS",
    "QUEUE",
    "TABLE",
    "Handler",
    "Job",
    "JobState",
    "Kind",
    "announce",
    "announce_on_commit",
    "delete_failed",
    "discard_enqueued",
    "enqueue",
    "is_redis_up",
    "job",
    "kinds",
    "periodic",
    "purge",
    "queue_of",
    "redis_client",
    "retry",
    "task",
]
