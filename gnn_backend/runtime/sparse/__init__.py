"""The sparse operators on the device engine: layouts, kernel instances, launches."""
