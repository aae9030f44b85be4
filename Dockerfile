# The tools for checkpoints, the client and the daemon, without torch (about 250 MB):
#
#   docker build --tag zerotools .
#   docker run --rm --volume /data:/data zerotools inspect /data/checkpoint
#   docker run --rm --volume /data:/data --user "$(id -u):$(id -g)" zerotools consolidate /data/checkpoint /data/model
#
# Dockerfile.train has torch, too.
FROM python:3.11-slim AS build
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.11-slim
COPY constraints.txt /tmp/constraints.txt
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --constraint /tmp/constraints.txt \
    "$(echo /wheels/zerotools-*.whl)[daemon,remote,yaml,top]"
RUN useradd --create-home --uid 1000 zerotools
USER zerotools
WORKDIR /data
ENTRYPOINT ["zerotools"]
CMD ["--help"]
