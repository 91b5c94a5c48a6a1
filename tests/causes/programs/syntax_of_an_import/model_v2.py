import math

def build(width, depth):
    layers = [width] * depth
    return sum(layers
