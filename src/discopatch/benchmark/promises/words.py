"""What docs/promises.md says around its figures."""

INTRO = """# Promises

Whether the promised false alarms come true, how many images a fit takes, and what the storage of images does by itself.
How well scores tell normal images from others is in [results](results.md). Everything here is made by two commands:

```
python benchmarks/promises.py measure --data FOLDER   # docs/promises.json
python benchmarks/promises.py page                    # this page
```

Three scores stand side by side, all from the same frozen discriminator in one dense pass: **combined**, the default;
**statistics**, the distance of the layers' statistics from those of normal images; and **logit**, the paper's score.
AUROC is the chance that an image of the other kind scores higher than a normal one, 1 at best, 0.5 for a guess. The
range after it is its bootstrap 95 % interval over test images."""

FALSE_ALARMS = """{splits} random splits of normal images. On solar cells the heads are fitted anew in each split; on
photos the head stays, and each split calibrates it with other photos. *Found* is the share of tested images that were
flagged, over all splits. The *99 % range* is where that share lies if the promise holds, given that each threshold
rests on few calibration images; *binomial alone* takes the thresholds for exact, and is too narrow. Then the share of
each split in percent, and how many splits lie within the 99 % range of a single one."""

FIT_SIZE = """Solar cells, mean over {corruptions} corruptions at severity {severity} on {test} test images, by how many
normal images `fit` was given. A part of them is held out to calibrate a false-alarm rate of {rate}."""

STORAGE = """The photos to fit on lie at {size} pixels in files of their own, and the discriminator was trained on such
files. In the benchmark every image of this suite therefore ends its way in the same storage ({stored}). Here is what
that alone does:

- *as they come*: the test photos without that last storage, against the same photos with it; 0.5 where the detector
  does not see it, 1 where it takes them for strange;
- *trained on*: photos on which the discriminator was trained but the head not fitted, against the test photos, all
  stored alike; below 0.5 where those look more normal;
- *other images, as they come*: the mean over other kinds of images when neither they nor the test photos are so
  stored."""

LIMITS = """- The false alarms are of random splits of one set of images, which a correct implementation passes with any
  score. A camera that drifts breaks the promise, whatever this table says.
- A rate promised is a mean over draws of calibration images: with few of them a single detector may lie well beside it.
- Intervals are over test images only. Another draw of the images to fit on, or another training of the discriminator,
  moves the figures too.
- Saturation does little to grey images: solar cells are near 0.5 there, and the means by fit size carry that."""

MADE = """discopatch {discopatch}, weights {weights} (`{weights digest}`), transform `{transform digest}`, seed {seed};
{device}, Python {python}, torch {torch}, numpy {numpy}; {seconds} seconds. Digests are of files and of the way that
their images went. Each of the {corruptions} corrupted sets is made from the cells to test."""
