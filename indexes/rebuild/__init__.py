"""How is a generation made? In a child process: placed, trained, written, measured, sealed."""
