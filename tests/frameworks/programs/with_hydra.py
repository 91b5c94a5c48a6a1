"""A script with Hydra's decorator, whose workers share one output folder."""

import os

import hydra
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    folder = hydra.core.hydra_config.HydraConfig.get().runtime.output_dir
    print(f"rank {os.environ['RANK']} lr {config.lr} folder {os.path.relpath(folder)}")


if __name__ == "__main__":
    main()
