"""The build side: specs, locks, rendered files and the engine. Never imports torch or train."""
