"""What callers of the service use: the Python client, which users import as `nearline`."""
