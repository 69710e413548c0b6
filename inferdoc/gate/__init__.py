"""The gate: whether a change made serving worse, by a test that noise does not fail."""
