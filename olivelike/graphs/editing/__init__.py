"""Editing a graph: values, shapes and blocks are kept right."""
