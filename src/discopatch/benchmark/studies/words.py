"""What docs/studies.md says around its tables."""

INTRO = """# Studies

The studies of the paper, run again on a few thousand photos. Every training sees {patches:,} patches of its own kind
in {steps:,} steps of {images} pictures, at a learning rate of {learning_rate:g}: short beside the paper's, and the
same for all. Figures are AUROC times 100: the chance that a strange image scores higher than a normal one, 100 at best,
50 for a guess. The range after each is its bootstrap 95 % interval over test images, unless it says otherwise. Where
rows compete, the best of a column is in bold, the second in italics. *Near*: {near}. *Far*: {far}. *Covariate*: the
test photos under {corruptions} corruptions. *Control*: photos at 227 px, in which nothing is strange. One transform for
all; every test image, corrupted or not, ends its way as a 256 px JPEG of quality 92, as the photos to fit on are
stored. What the studies say is told in [results](results.md).

```
python benchmarks/studies.py run --data FOLDER --out FOLDER    # studies.json
python benchmarks/studies.py page FOLDER                       # this page and its figures
discopatch bench --suite natural ... --studies FOLDER          # these tables and figures beside those of a benchmark
```"""

BESIDE = """The tables after that of cost are studies, trainings of their own: {patches:,} patches in {steps:,} steps
each. *Near*: {near}. *Far*: {far}. *Covariate*: the test photos under {corruptions} corruptions. *Control*: photos at
227 px, in which nothing is strange. {made}"""

UNFINISHED = """**Not measured yet:** {missing}. The tables below hold what has been; the same command goes on."""

NORMALISATION = """The paper's recipe with its normalisation layer replaced, seed 0: GroupNorm and InstanceNorm know
one patch alone, the last row takes all patches of an image together in scoring, and all of the batch in training.
Corruptions are those of severity {severities}.

```
python benchmarks/studies.py run ... --only train --only evaluate --run paper-0 --run group-0 --run instance-0
```"""

BIAS = """A model of whole pictures with torch's BatchNorm, seed 0; score: minus the logit. *Learned*: the running
statistics of training. *Batch*: the statistics of the batch that is scored, which holds either test photos or strange
images. Batches of strange images are drawn from all sets of a group together ({images}), those of corrupted photos,
severity {severity}, from one corruption; every image is scored once in each of {rounds} rounds of random batches, and
figures are means over sets and rounds. *Rounds* is from the lowest round to the highest. The intervals take the
batches as given: images of one batch are not independent, and with {test} test photos there are few large batches.

*Mixed batches*: the same model when normal and strange images share a batch, which nobody can rule out in use. *Half*:
one half of each batch is strange. *One*: a single strange image among normal ones, {lone} of each set, one round.
Normal images are scored in the same batches.

*Batches of one set*: one set alone, as the paper has them; a set smaller than the batch is left out, and the mean is
over so many sets.

```
python benchmarks/studies.py run ... --only train --only bias --run full-0
```"""

COUNTS = """Scores from so many random patches, drawn once for all images; PatchNorm takes those of an image together.
At most {most} images of each set, corruptions at severity {severity}; statistics and combined are fitted anew on as
many patches of the photos to fit on.

```
python benchmarks/studies.py run ... --only train --only counts --run paper-0 --run natural-0 --run released
```"""

SEEDS = """Mean over seeds ± standard deviation over seeds. The test images are the same each time. *paper* is the
paper's recipe; *natural* that of the released weights: shrunk pictures, spoiled copies and their names beside the
forgeries, PatchNorm grouped by image, a learning rate that falls to zero. Scores: the mean logit of {patches} random
patches, the mean logit of one dense pass, and two heads fitted on {fit} training photos.

Recipes are paired seed by seed: both begin with the same weights and see the pictures in the same order. The interval
of the mean difference is Student's.

```
python benchmarks/studies.py run ... --only train --only evaluate
```"""

SPECTRA = """The power of what the VAE makes over that of real patches, in three bands of frequency: 1 where they
agree. Whole curves are in studies.json.

```
python benchmarks/studies.py run ... --only train --only spectra --run paper-0 --run natural-0
```"""

RUNS = """*Fused* passes are compiled for the GPU; whole pictures, whose size changes from step to step, take the plain
ones, as do the layers that have no fused pass. Seconds are those of the training with its compilation, longer
where several share a GPU. The full-size model sees whole pictures, as many pixels as the others see in patches.
Losses, thinned, are in losses.csv."""

MADE = """discopatch {discopatch}, Python {python}, torch {torch}, numpy {numpy}, Pillow {pillow}; {device}; trained
in {training precision}, scored in {precision}; seed of everything but the trainings: {seed}."""
