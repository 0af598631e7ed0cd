# pubsubd in a container: no root, state in /data, ready when it says so.
#
#   docker build -t pubsubd .
#   docker run --rm -p 8085:8085 -v pubsubd:/data pubsubd
#   export PUBSUB_EMULATOR_HOST=localhost:8085

# Built here and copied below: neither pip's cache nor the sources are in what is run.
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY pubsubd ./pubsubd
COPY analytics ./analytics
RUN python -m venv /opt/pubsubd && /opt/pubsubd/bin/pip install --no-cache-dir .

FROM python:3.12-slim
COPY --from=build /opt/pubsubd /opt/pubsubd

# A volume that is made for a container takes the owner of what it hides.
RUN useradd --system --uid 10001 --no-create-home pubsubd \
    && mkdir /data \
    && chown pubsubd /data
USER pubsubd
VOLUME /data
EXPOSE 8085

# Every option of `pubsubd serve` has a variable: give others with -e, as in -e PUBSUBD_DURABILITY=power.
ENV PATH=/opt/pubsubd/bin:$PATH \
    PUBSUBD_HOST=0.0.0.0 \
    PUBSUBD_PORT=8085 \
    PUBSUBD_DATA_DIR=/data

# GET / is answered as soon as the server listens.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --start-interval=0.5s CMD \
    ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['PUBSUBD_PORT'])"]

# The server is process 1 and stops in order at the SIGTERM of `docker stop`.
ENTRYPOINT ["pubsubd"]
CMD ["serve"]
