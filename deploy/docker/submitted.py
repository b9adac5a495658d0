"""What Spark's operators start in the image: a command of penstock, with the arguments of the application."""

import sys

from penstock.cli.main import main

sys.exit(main())
