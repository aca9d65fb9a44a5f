"""How is a generation built? In a child process: place, train, write, measure, seal."""
