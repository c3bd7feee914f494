# Foreman in one image: `docker build -t foreman .`, then give it a Postgres (compose.yaml shows how). Without
# FOREMAN_DATABASE_URL it starts its own in /data. Callers need an API key either way; the first one is printed at the
# first start (`docker logs`).

FROM python:3.13-slim AS builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /build
RUN python -m venv /opt/foreman
# Dependencies first: this layer is built again only when the lock changes.
COPY requirements.lock ./
RUN /opt/foreman/bin/python -m pip install --require-hashes -r requirements.lock
COPY LICENSE README.md pyproject.toml ./
COPY alembic alembic
COPY app app
COPY client client
# The tools that built the package, and pip itself, have no business in the image.
RUN /opt/foreman/bin/python -m pip install --no-deps --no-build-isolation ./client . \
    && /opt/foreman/bin/python -m pip uninstall --yes hatchling editables pip

FROM python:3.13-slim
# A fixed number, so that the owner of a mounted volume can be told in advance.
RUN groupadd --gid 10001 foreman \
    && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin foreman \
    && install -d -o 10001 -g 10001 -m 0700 /data
COPY --from=builder /opt/foreman /opt/foreman
# 0.0.0.0, for who calls from outside the container. With any address but loopback authentication is on, and Foreman
# refuses to start with FOREMAN_AUTH=off.
ENV PATH="/opt/foreman/bin:$PATH" \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    FOREMAN_DATA_DIR=/data \
    FOREMAN_HOST=0.0.0.0 \
    FOREMAN_PORT=8080
# Nothing but /data and /tmp is ever written: the root file system may be read-only.
VOLUME ["/data"]
WORKDIR /data
USER 10001:10001
EXPOSE 8080
# Without the proxies of the environment: it asks its own container. For the same reason a certificate, which is for a
# name, is not verified. It needs no API key.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, ssl, urllib.request as r; scheme = 'https' if os.environ.get('FOREMAN_TLS_CERT') else 'http'; r.build_opener(r.ProxyHandler({}), r.HTTPSHandler(context=ssl._create_unverified_context())).open(scheme + '://127.0.0.1:' + os.environ['FOREMAN_PORT'] + '/healthz', timeout=4)"]
ENTRYPOINT ["foreman"]
CMD ["serve"]
