"""Rows and a small pretrained model that ship with isotune, and the scripts that make them.

All text in them is our own, written for isotune and under its licence (Apache-2.0).
"""
