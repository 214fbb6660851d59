# Rendered by `build.py render` from images/backends/cuda.yaml and images/locks/cuda; do not edit.
# Sourced by the entrypoint: the environment scripts of the base image.
