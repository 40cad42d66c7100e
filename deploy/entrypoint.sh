#!/bin/sh
# `docker run IMAGE --model-id MODEL`, as with TGI's images; `docker run IMAGE serve`, as SageMaker starts a container; or a command.
set -eu
case "${1:-}" in
    serve) exec python -m tgi_core.cli.sagemaker "$@" ;;
    tgi | tgi-* | text-generation-* | python | sh | bash) exec "$@" ;;
    *) exec text-generation-launcher "$@" ;;
esac
