import atexit
from pydantic import BaseModel, PositiveInt

@atexit.register
def flush_metrics():
    raise BrokenPipeError("metrics socket went away")

class TrainConfig(BaseModel):
    steps: PositiveInt
    lr: float
    name: str = "run"

TrainConfig.model_validate({"steps": -5, "lr": "fast"})
