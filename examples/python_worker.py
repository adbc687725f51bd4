"""Answers each line with the prime factors of the number on it."""

import sys


def factors(number):
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            yield divisor
            number //= divisor
        divisor += 1
    if number > 1:
        yield number


for line in sys.stdin:
    print(*factors(int(line)), flush=True)
