"""Verification: a component's outputs, and a pipeline's pictures, held against torch."""
