"""How the command comes to the nodes: one file a launcher. Each only starts `scalemark run` once a node."""
