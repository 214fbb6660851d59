"""The training loop: trainer, metrics, health, the run from recipe to manifest."""
