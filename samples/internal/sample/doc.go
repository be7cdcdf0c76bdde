// Package sample is shared by the sample programs and has nothing that they demonstrate:
// flags, logs, the ways that descriptors travel between the two programs of a pair, the check
// of a received text, and how a program ends.
//
// # Flags
//
// The flags have the names of DOCA's, in both spellings, with one dash or two. A program has
// only the flags that it uses; -h lists them.
//
// # Descriptors
//
// The two programs of a pair exchange their descriptors before RDMA can begin. -oob selects
// how:
//
//	dir          through files in a folder of the user's own (the default)
//	dir:PATH     through files in that folder
//	tcp:HOST:PORT  the responder listens there, the requester connects to it
//	cm:HOST:PORT  likewise, by connection manager: nothing travels beside RDMA
//	stdio        printed on standard output, pasted on standard input
//
// With -cm, -lp, -sa and -sat, as in DOCA's samples, connections are made by address, and the
// messages of the connection manager carry everything else: -cm is short for -oob cm::13579
// or, with -sa, for -oob cm:ADDR:13579.
//
// With -ld, -re and -m descriptors are written to and read from files, one descriptor each, as
// in DOCA's samples. At the end the requester reports over the same way whether it has
// succeeded, since a responder that is only read from or written to does not notice.
//
// # Output
//
// Data goes to standard output, logs and the error to standard error. A failure
// is one line.
//
// # Exit codes
//
//	0    success
//	1    failure
//	2    wrong usage
//	130  interrupted (Ctrl-C); 143 by SIGTERM
package sample
