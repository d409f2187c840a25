"""Jobs and pictures on the workers of a Dask cluster: all that `--cluster` does."""
