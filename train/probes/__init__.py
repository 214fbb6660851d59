"""Numeric probes: what a device computes is compared with fp32 on the CPU before a run relies on it."""
