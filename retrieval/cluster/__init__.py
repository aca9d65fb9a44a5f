"""Where is a collection that several machines hold? Names shards and finds their nodes, sends calls to them, and
divides requests among them. How a search ranks what they find is in `search`, and how a shard is kept in `indexes`."""
