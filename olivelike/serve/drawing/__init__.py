"""Jobs, from the queue to picture files: `dispatch` gives them to a child process, one after another."""
