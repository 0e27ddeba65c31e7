"""A fitted detector or an export as an HTTP service, with a page to look at."""
