"""What several commands share."""


def source_of(images: list[str]) -> str | list[str]:
    """One path stays a path, so that a wrong one is an error at once; of several, a wrong one is refused among them."""
    return images[0] if len(images) == 1 else images
