"""What a host or container has of what a backend needs. Standard library alone: build.py runs it, too."""
