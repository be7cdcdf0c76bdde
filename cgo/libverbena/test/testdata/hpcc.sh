# hpcc.sh FOLDER runs the HPC Challenge in a new folder below FOLDER, and prints its results.
set -e
cd "$(mktemp -d -p "$1")"
cp /usr/share/doc/hpcc/examples/_hpccinf.txt hpccinf.txt
mpirun --allow-run-as-root --oversubscribe -np 4 --mca pml ucx --mca btl ^openib,vader,tcp hpcc
cat hpccoutf.txt
