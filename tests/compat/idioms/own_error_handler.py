"""A platform writes errors in its own way: a subclass of the error handler."""

from torch.distributed.elastic.multiprocessing.errors import ErrorHandler, record


class Handler(ErrorHandler):
    def initialize(self):
        print("initialized")
        super().initialize()

    def record_exception(self, error):
        print("recorded", type(error).__name__, error)


def main(number):
    raise ValueError(number)


try:
    record(main, Handler())(4)
except ValueError as error:
    print("raised", error)
