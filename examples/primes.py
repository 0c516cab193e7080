"""Prints the primes below a number: the script that script.sh runs."""
import sys

limit = int(sys.argv[1]) if len(sys.argv) > 1 else 30
print(*[n for n in range(2, limit) if all(n % d for d in range(2, n))])
