# syntax=docker/dockerfile:1
# A small image that runs as an unprivileged user, on a read-only file system:
# docker run --read-only -v ./llm_guard.yaml:/config.yaml ...
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python -m venv /venv && python -m venv /tools
COPY requirements.lock requirements-build.lock requirements-image.lock ./
RUN /venv/bin/pip install --no-cache-dir --require-hashes -r requirements-image.lock \
    && /tools/bin/pip install --no-cache-dir --require-hashes -r requirements.lock -r requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY compiling ./compiling
COPY llm_guard ./llm_guard
# The build fails here if the code does not compile: an image without the compiled build would be slower than documented.
# It takes ten minutes of processor time; --build-arg COMPILED=false leaves it out, to try a change.
ARG COMPILED=true
RUN HATCH_BUILD_HOOK_ENABLE_CUSTOM=$COMPILED /tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /venv/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl \
    && /venv/bin/llm-guard --version | grep --fixed-strings "$([ "$COMPILED" = false ] || echo +compiled)" \
    && /venv/bin/python -m compileall -q /venv/lib \
    && /venv/bin/pip uninstall --yes --quiet pip

FROM python:3.13-slim
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
COPY --from=build /venv /venv
COPY config/docker.yaml /config.yaml
# State that outlives the process: mount a volume here to keep it.
ENV XDG_STATE_HOME=/state
RUN install -d -o 65534 -g 65534 /state
USER 65534:65534
EXPOSE 8080
# Checks only the event loop: a provider's outage must not restart the gateway. Set the port where `ops.port` is another.
ENV LLM_GUARD_HEALTH_PORT=8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ['LLM_GUARD_HEALTH_PORT']}/healthz\", timeout=2)"]
# The gateway drains on SIGTERM for server.drain (30 s by default): allow longer than that (docker stop -t 40).
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "llm_guard"]
CMD ["serve", "-c", "/config.yaml", "--host", "0.0.0.0"]
