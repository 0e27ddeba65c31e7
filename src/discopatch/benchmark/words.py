"""What docs/results.md says around its figures."""

INTRO = """# Results

How well scores tell normal images from others, and whether the promised false alarms come true. Figures are AUROC: the
chance that an image of the other kind scores higher than a normal one, 1 at best, 0.5 for a guess. The range after each
is its bootstrap 95 % interval over test images. Everything is made by two commands:

```
python benchmarks/results.py measure --natural FOLDER --ood FOLDER   # docs/results.json
python benchmarks/results.py page                                    # this page
```

Four scores stand side by side, all from the same frozen discriminator: **combined**, the default; **statistics**, the
distance of the layers' statistics from those of normal images; **logit**, the paper's score in one dense pass; and the
paper's own way, the mean logit of 64 random patches."""

GLANCE = """Solar cells and photos: the mean over all corruptions, at all severities, and at those at which the paper's
own way was measured too."""

CORRUPTED = """Fitted on {fit:,} images, calibrated on {calibration}, tested on {test} clean ones and the same under
{corruptions} corruptions. A group is *like a training defect* when the discriminator was trained against something near
to it. The control at severity 0 is one half of the clean images, stored without loss and read again, against the other
half, mean of {halvings} halvings; its range holds 95 % of them."""

OTHER_IMAGES = """Against the test photos. *Control*: the test photos along the set's own route, its sizes and file
formats, against themselves; 0.5 where the detector does not see the route. *Route-matched*: the set against the test
photos along its route. photos-227px are photos, and so a control themselves; they are not in the mean."""

STORAGE = """The photos to fit on lie at 256 pixels in files of their own, and the discriminator was trained on such
files. In the tables above every image of this suite therefore ends its way in the same storage ({stored}). Here is
what that alone does:

- *as they come*: the test photos without that last storage, against the same photos with it; 0.5 where the detector
  does not see it, 1 where it takes them for strange;
- *trained on*: photos on which the discriminator was trained but the head not fitted, against the test photos, all
  stored alike; below 0.5 where those look more normal;
- *other images, as they come*: the mean over other kinds of images when neither they nor the test photos are so
  stored."""

FALSE_ALARMS = """{splits} random splits of normal images. *Found* is the share of tested images that were flagged, over
all splits. The *99 % range* is where that share lies if the promise holds, given that each threshold rests on few
calibration images; *binomial alone* takes the thresholds for exact, and is too narrow. Then the share of each split in
percent, and how many splits lie within the 99 % range of a single one."""

FIT_SIZE = """Solar cells, mean over corruptions at severity {severity} on {test} test images, by how many normal images
`fit` was given. A part of them is held out to calibrate a false-alarm rate of 10 %."""

LIMITS = """- Intervals are over test images only. Another draw of the images to fit on, or another training of the
  discriminator, moves the figures too.
- A control far from 0.5 means that the detector sees how images were stored and resized. Such a row is worth what its
  route-matched column says. The routes are read off the files: what befell an image before that is not known.
- Corruptions that resemble a defect of the training stand apart from the others; only those are a test of the unknown.
- The false alarms are of random splits of one set of images, which a correct implementation passes with any score. A
  camera that drifts breaks the promise, whatever this table says.
- Saturation does little to grey images: solar cells are near 0.5 there, and their means carry that.
- The corruptions are our own, seeded versions of those of ImageNet-C: compare them with each other, not with published
  tables. [What they look like](images/corruptions.png) (`python benchmarks/contact_sheet.py`)."""

MADE = """discopatch {discopatch}, weights {weights} (`{weights digest}`), transform `{transform digest}`, seed {seed};
{device}, Python {python}, torch {torch}, numpy {numpy}, Pillow {pillow}; {seconds} seconds. Digests are of names and
pixels."""
