# Rendered by `build.py render` from images/backends/hygon.yaml and images/locks/hygon-training; do not edit.
# Sourced by the entrypoint: the environment scripts of the base image.
activate /opt/dtk/env.sh -- 
