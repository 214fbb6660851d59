# Rendered by `build.py render` from images/backends/cuda.yaml and images/locks/cuda13; do not edit.
# Sourced by the entrypoint: the environment scripts of the base image.
