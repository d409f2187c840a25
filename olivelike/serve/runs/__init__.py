"""Workflows and conversions as jobs."""
