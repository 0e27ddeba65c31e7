"""The benchmark behind `discopatch bench`: suites of images, preprocessing, methods, metrics, tables and plots.

A method is written ENCODER/METHOD, such as discopatch/components or resnet50/knn:k=10. One of a user's own is
registered in a plugin, see `plugins.py`. To add one here, write a dataclass in `bench/baselines/` that derives from
`Baseline` and add it to `BASELINES`:

    @dataclass(kw_only=True)
    class Norm(Baseline):
        '''Confidence: |f|^p.'''

        needs = (PENULTIMATE,)  # the kinds of features that it scores, see `networks/base.py`
        options: ClassVar = {"p": float}  # what a user may set: resnet50/norm:p=2

        p: float = 1.0

        def score(self, features: FeatureDict) -> Array:
            return -np.linalg.norm(features[PENULTIMATE], axis=1) ** self.p

A method with parameters also has `fit(normal)`, which sets them and returns itself. To add a network, write a
`Backbone` (`networks/base.py`) and load it in `methods.load_encoder`. Tables, plots, intervals and stored runs need no
change.
"""
