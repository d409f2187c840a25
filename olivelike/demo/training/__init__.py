"""The stages of the demo's training; `python -m olivelike.demo.train` runs them."""
