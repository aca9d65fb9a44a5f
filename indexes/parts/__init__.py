"""What does one search read? Delta, segments and generations, put together into snapshots."""
