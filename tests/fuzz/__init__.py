"""Random and damaged input for every decoder of bytes from outside, compared with a reference library.

cd tests && python -m fuzz --minutes 30            # all decoders; or: make fuzz ARGS="--minutes 30"
cd tests && python -m fuzz cql_cells --inputs 1000000 --seed 7
cd tests && python -m fuzz cql_cells --case found.bin
"""
