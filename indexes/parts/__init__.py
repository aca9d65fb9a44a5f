"""What does one search read? Delta, segments and generations, assembled into snapshots."""
