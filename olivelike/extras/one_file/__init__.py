"""A whole pipeline as one graph: its networks, the loop around the UNet, and the arithmetic of schedulers."""
