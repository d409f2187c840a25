"""Diffusers' schedulers: their names, their configs, and those that can't draw here."""
