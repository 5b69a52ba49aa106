# The image of every Atrium process: web by default, worker and release by their commands.
# docs/docker.md says how to run it; compose.yaml runs all of it on one machine.

# Debian 12 has PostgreSQL 15's client programs, which `flask backup` and `flask restore` run:
# they must be of the server's major version.
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS packages
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /opt/atrium
RUN python -m venv .venv
# requirements-otel.txt, which includes the other, also sends traces (docs/deployment.md).
ARG REQUIREMENTS=requirements.txt
COPY requirements.txt requirements-otel.txt ./
RUN .venv/bin/pip install --no-cache-dir --only-binary :all: --require-hashes -r ${REQUIREMENTS}

FROM ${PYTHON}
# No pinned versions: each build takes Debian's security updates.
# hadolint ignore=DL3008
RUN apt-get update -q \
    && apt-get install -q -y --no-install-recommends postgresql-client-15 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 10001 atrium \
    && useradd --system --uid 10001 --gid atrium --home-dir /opt/atrium --no-create-home \
        --shell /usr/sbin/nologin atrium \
    && install --directory --owner=atrium --group=atrium --mode=700 /var/lib/atrium

WORKDIR /opt/atrium
COPY --from=packages /opt/atrium/.venv .venv
COPY . .
# The user owns nothing here and cannot write: compile the modules now.
RUN .venv/bin/python -m compileall -q app deploy migrations wsgi.py

ENV PATH=/opt/atrium/.venv/bin:/opt/atrium/bin:$PATH \
    PORT=8000 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    SERVICE_ENV=production \
    SERVICE_INSTANCE_DIR=/var/lib/atrium

USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# `/live`, not `/ready`: restarting web does not bring a database back.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"PORT\"]}/live', timeout=4)"]

CMD ["gunicorn", "-c", "deploy/gunicorn.conf.py", "wsgi:app"]
