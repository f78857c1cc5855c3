# The verifier, without ROS. Not tried: where this was written there was no docker. From the root:
#
#   docker build -f docker/cloud.Dockerfile -t edge-cloud-spec-cloud .
#
# docs/deployment.md says how to run it.
FROM python:3.12-slim

WORKDIR /app
COPY requirements requirements
# pip's torch brings CUDA's libraries; the host needs the driver and the NVIDIA container toolkit.
ARG TORCH=""
RUN pip install --no-cache-dir ${TORCH} -r requirements/torch.txt \
    && pip install --no-cache-dir -r requirements/numpy.txt -r requirements/base.txt -r requirements/transformers.txt \
       -r requirements/grammar.txt -r requirements/metrics.txt -r requirements/openai.txt

COPY . .
RUN EDGE_CLOUD_SPEC_MESSAGES=0 pip install --no-cache-dir --no-deps .

# A fixed uid, so that secrets of mode 600 can be given to it (docs/deployment.md).
RUN useradd --create-home --uid 10001 verifier
USER verifier
EXPOSE 50151
STOPSIGNAL SIGTERM
ENTRYPOINT ["edge-cloud-spec", "serve"]
CMD ["--target", "/models/target", "--device", "cuda", \
     "--address", "0.0.0.0:50151", "--certificate", "/secrets/server.pem", "--key", "/secrets/server.key", \
     "--token-file", "/secrets/token"]
