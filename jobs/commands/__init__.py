"""The subcommands. They parse arguments and print; the work is done in `jobs`."""
