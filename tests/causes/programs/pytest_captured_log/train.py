import logging
import warnings

def train():
    try:
        raise TimeoutError("node 3 was slow to answer")
    except TimeoutError:
        logging.exception("retrying once")
    warnings.warn("ValueError in scheduler ignored: use step() after optimizer.step()")
    return 0.31

def test_accuracy():
    accuracy = train()
    if accuracy < 0.9:
        raise AssertionError(f"accuracy {accuracy} is below 0.90")

def test_ok():
    assert train() > 0
