import logging
import hydra
from omegaconf import DictConfig

log = logging.getLogger(__name__)

@hydra.main(version_base=None, config_path=".", config_name="config")
def main(cfg: DictConfig) -> None:
    log.info("lr is %s", cfg.optim.lr)
    log.info("warming up for %s steps", cfg.optim.warmup)

main()
