import time

from snakepit_bridge import run


def main():
    while True:
        time.sleep(1)  # the work


run(main)
