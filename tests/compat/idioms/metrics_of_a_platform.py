"""A platform takes the metrics of functions and of the library with a handler of its own."""

from torch.distributed.elastic import metrics


class Handler(metrics.MetricHandler):
    def emit(self, metric_data):
        print(metric_data.group_name, metric_data.name, metric_data.value >= 0)


metrics.configure(Handler(), "mine")


@metrics.prof(group="mine")
def work():
    return 3


print("worked", work())
metrics.put_metric("steps", 4, "mine")
