// Package test tests libverbena.so with programs that nobody here wrote: the tools of
// libibverbs and librdmacm, perftest, qperf, fio, UCX, libfabric, MPI, and the test suite of
// rdma-core. Each runs as an ordinary process with the library preloaded, without privileges
// and without a kernel module.
//
// TestPrograms prints one table: each program as server and client, between two processes by
// shared memory and by UDP, and between two network namespaces. In the short form it runs a
// selection. TestGuestPrograms, which make rig PARTS=library runs, prints the same table with the
// kernel's rxe at one end, in both roles. TestSuite runs rdma-core's tests beside their results on
// rxe. TestCases and TestCMFunctions run programs in C for what the others do not cover.
package test
