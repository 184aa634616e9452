# syntax=docker/dockerfile:1
# A small image that runs as nobody, on a read-only file system: docker run --read-only -v ./llm_guard.yaml:/config.yaml ...
FROM python:3.13-slim AS build
WORKDIR /src
RUN python -m venv /venv
COPY requirements.lock ./
RUN /venv/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY llm_guard ./llm_guard
RUN cp -r llm_guard "$(/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
    && /venv/bin/python -m compileall -q /venv/lib \
    && /venv/bin/pip uninstall --yes --quiet pip

FROM python:3.13-slim
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
COPY --from=build /venv /venv
COPY config/docker.yaml /config.yaml
USER 65534:65534
EXPOSE 8080
# Depends on nothing but the event loop: a provider's outage must not restart the gateway.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
# The gateway drains on SIGTERM for server.drain (30 s by default): give it longer than that (docker stop -t 40).
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "llm_guard"]
CMD ["serve", "-c", "/config.yaml", "--host", "0.0.0.0"]
