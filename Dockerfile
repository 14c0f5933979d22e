# `attentune serve` as a user without rights: docs/exporting.md says how to build and run it.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
# Debian keeps one version of a package, so that pinned ones could not be installed later.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
RUN python3 -m venv /opt/attentune
ENV PATH=/opt/attentune/bin:$PATH
# PyTorch alone and first. TORCH_INDEX is the index of its CPU builds, which its installation page names; without it the
# image has gigabytes of CUDA libraries.
ARG TORCH_INDEX=
COPY requirements/constraints.txt requirements/
RUN pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} -c requirements/constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir -c requirements/constraints.txt ".[serve,explain,embedded]"

FROM ${BASE}
# Without a C compiler: layers in C are for bf16, and predictions are float32.
# Debian keeps one version of a package, so that pinned ones could not be installed later.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --user-group --create-home --home-dir /home/attentune attentune
COPY --from=build /opt/attentune /opt/attentune
ENV PATH=/opt/attentune/bin:$PATH HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/attentune
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["attentune", "serve"]
CMD ["/run-folder", "--host", "0.0.0.0"]
