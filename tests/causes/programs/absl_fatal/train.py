from absl import app, flags, logging

flags.DEFINE_float("lr", 0.1, "the learning rate")

def main(argv):
    logging.info("lr %s", flags.FLAGS.lr)
    try:
        int("NaN-ish")
    except ValueError:
        logging.exception("bad value in the metrics file, line skipped")
    logging.fatal("Checkpoint /ckpt/step-400 is corrupt: bad CRC in tensor 'head.weight'")

app.run(main)
