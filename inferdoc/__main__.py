from inferdoc.cli import main

main()
