"""Values for the sites of an NVFlare federation: an aggregator for ScatterAndGather, or FedAvg(aggregator=...).

Tried with the FLModel and ModelAggregator of NVFlare 2.9.0, not in a running federation (docs/flower-app.md).
"""

from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator

import hanse


class ValuedAggregator(ModelAggregator):
    """Averages by steps, and says what each site's model was worth.

    Args:
        evaluate: takes ``{name: array}`` and returns one number (more is better). If sites send differences
            (``ParamsType.DIFF``), it adds the global model, and ``first`` is zeros.
        first: the model that the federation starts from, ``{name: array}``.
    """

    def __init__(self, evaluate, first):
        super().__init__()
        self.evaluate, self.models = evaluate, []
        self.before = first

    def accept_model(self, model: FLModel):
        """Keep a site's model."""
        self.models.append(model)

    def aggregate_model(self) -> FLModel:
        """Return the average, and print what each model was worth."""
        weights = [m.meta.get(FLMetaKey.NUM_STEPS_CURRENT_ROUND, 1.0) for m in self.models]
        params = [m.params for m in self.models]
        found = hanse.value(params, self.evaluate, weights, start=self.before)
        for model, value, (low, high) in zip(self.models, found.values, found.intervals, strict=True):
            print(f"{model.meta.get('client_name')}: worth {value:.4f} (95 %: {low:.4f} to {high:.4f})")
        mean = {
            name: sum(w * p[name] for w, p in zip(weights, params, strict=True)) / sum(weights) for name in params[0]
        }
        kind = self.models[0].params_type
        if kind != ParamsType.DIFF:
            self.before = mean
        return FLModel(params=mean, params_type=kind)

    def reset_stats(self):
        """Forget the round's models."""
        self.models = []
