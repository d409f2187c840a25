"""An example plugin for olivelike: one pass and its helper module."""
