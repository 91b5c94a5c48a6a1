import better_exceptions
better_exceptions.hook()
import logging
logging.basicConfig(level=logging.INFO)
logging.info("importing the model")
import model_v2
