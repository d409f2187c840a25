"""Ablation: what each variant of a sweep costs and gains, in one table."""
