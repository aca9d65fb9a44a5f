"""Making models: from whatever holds an encoder to a folder that can be served. `exporting` tells the story."""
