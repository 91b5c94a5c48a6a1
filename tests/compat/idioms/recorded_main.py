"""The main function of a training script is recorded, so that its error is the one of the job."""

import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record


@record
def main():
    raise RuntimeError("loss is NaN")


if __name__ == "__main__" and len(sys.argv) == 1:
    import torch.distributed.run as torchrun

    try:
        torchrun.main(["--nproc-per-node", "1", __file__, "worker"])
    except ChildFailedError as error:
        print("first error:", error.get_first_failure()[1].error_file_data["message"]["message"])
        print("in the report:", "RuntimeError: loss is NaN" in str(error))
elif __name__ == "__main__":
    main()
