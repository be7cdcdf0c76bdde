// A ping-pong between two ranks of MPI, with messages that go eagerly and by rendezvous.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static char byte_of(int round, int size, int i)
{
	return (char)(round * 31 + size * 7 + i);
}

int main(int argc, char **argv)
{
	int rank, ranks, wrong = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks != 2) {
		fprintf(stderr, "there are %d ranks, and must be 2\n", ranks);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	for (int size = 1; size <= 1 << 20; size *= 4) {
		char *data = malloc(size);

		for (int round = 0; round < 20; round++) {
			if (rank == 0) {
				for (int i = 0; i < size; i++)
					data[i] = byte_of(round, size, i);
				MPI_Send(data, size, MPI_BYTE, 1, round, MPI_COMM_WORLD);
				MPI_Recv(data, size, MPI_BYTE, 1, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				for (int i = 0; i < size; i++)
					wrong += data[i] != (char)~byte_of(round, size, i);
			} else {
				MPI_Recv(data, size, MPI_BYTE, 0, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				for (int i = 0; i < size; i++)
					data[i] = (char)~data[i];
				MPI_Send(data, size, MPI_BYTE, 0, round, MPI_COMM_WORLD);
			}
		}
		free(data);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Finalize();
	if (rank == 0 && !wrong)
		printf("all sizes: ok\n");
	return wrong != 0;
}
