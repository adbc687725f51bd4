import logging

import numpy as np
import snakepit_bridge

log = logging.getLogger("vectors")


def norm(vector):
    if not vector:
        raise ValueError("a vector needs a dimension")
    return np.linalg.norm(vector)


def walk(dimensions):
    position = np.zeros(dimensions)
    try:
        while True:
            position += 1
            yield snakepit_bridge.call("Norms.scale", np.linalg.norm(position))
    finally:
        log.info("the walk is over")
