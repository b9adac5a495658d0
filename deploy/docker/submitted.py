"""What `spark-submit` and Spark's operators start in the image: a command of penstock, with the application's arguments."""

import sys

from penstock.cli.main import main

sys.exit(main())
