"""python -m discopatch"""

from discopatch.cli import main

main()
