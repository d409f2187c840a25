"""What code a pass is: the imports that its modules follow, their digests, and the versions of their libraries."""
