"""A script with Hydra's decorator; its configuration is in the script."""

import os

import faults
import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

ConfigStore.instance().store(name="config", node={"lr": 0.5})


@hydra.main(version_base=None, config_name="config")
def main(config: DictConfig) -> None:
    for step in range(20):
        faults.at(step)
    folder = os.path.relpath(HydraConfig.get().runtime.output_dir)
    print(f"rank {os.environ['RANK']} lr {config.lr} folder {folder}", flush=True)


if __name__ == "__main__":
    main()
