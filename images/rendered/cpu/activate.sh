# Rendered by `build.py render` from images/backends/cpu.yaml and images/locks/cpu; do not edit.
# Sourced by the entrypoint: the environment scripts of the base image.
