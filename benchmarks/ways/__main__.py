from benchmarks.ways.follow import main

main()
