"""The stages of the demo's training; `python -m tools.train_demo` runs them."""
