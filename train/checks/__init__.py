"""The baked-in verification."""
