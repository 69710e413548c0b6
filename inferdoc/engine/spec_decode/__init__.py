"""Speculative decoding: drafters, and the check of what they propose."""
