"""The admin's pages in a real browser: needs the extra `browser` and the system's Chromium."""
