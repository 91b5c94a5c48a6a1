"""A launcher adds options to torchrun's parser, as NVIDIA's and DLRover's do."""

from torch.distributed.run import config_from_args, elastic_launch, get_args_parser

parser = get_args_parser()
parser.add_argument("--network-check", "--network_check", action="store_true")
words = ["--network-check", "--nproc_per_node=2", "--max_restarts=3"]
words += ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "train.py", "x"]
arguments = parser.parse_args(words)
config, command, command_arguments = config_from_args(arguments)
print("checks", arguments.network_check, "restarts", config.max_restarts)
elastic_launch(config=config, entrypoint=command)(*command_arguments)
