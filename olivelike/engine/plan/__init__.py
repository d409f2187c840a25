"""Planning: nodes, keys, hits and misses with reasons; nothing here runs a pass or writes a file."""
