"""The commands of the command line. They parse and print; the work is in `jobs` beside them."""
