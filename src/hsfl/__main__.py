"""python -m hsfl"""

from hsfl.cli import main

main()
