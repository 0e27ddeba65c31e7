"""cleanvision 0.3.7: the issues that it finds among the tested images of a folder, without normal images to fit on.

    lab = Imagelab(filepaths=files)
    lab.find_issues({name: {} for name in ISSUES})
    table = lab.issues    # a score from 0 to 1 and a decision for each issue

The score of an image is 1 less the smallest of its scores; it is flagged where any issue is found. Duplicates are not
looked for, as the images of a suite are copies of each other.
"""

from collections.abc import Sequence
from pathlib import Path

from peer import Fitted, Suite, main

ISSUES = "dark", "light", "odd_aspect_ratio", "low_information", "blurry", "grayscale", "odd_size"


def fit(suite: Suite) -> Fitted:
    from cleanvision import Imagelab

    flagged: list[bool] = []

    def score(files: Sequence[Path]) -> Sequence[float]:
        lab = Imagelab(filepaths=[str(each) for each in files])
        lab.find_issues({name: {} for name in ISSUES}, n_jobs=1, verbose=False)
        table = lab.issues.loc[[str(each) for each in files]]
        flagged.extend(table[[f"is_{name}_issue" for name in ISSUES]].any(axis=1))
        return list(1 - table[[f"{name}_score" for name in ISSUES]].min(axis=1))

    return Fitted(score, 4, flagged=lambda: flagged)


if __name__ == "__main__":
    main(__doc__, "cleanvision", "cleanvision", ["cleanvision==0.3.7"], {"cleanvision": fit})
