"""The code of a pass: the imports that its modules follow, their digests, and the versions of their libraries."""
