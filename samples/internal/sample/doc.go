// Package sample has what the sample programs share, and nothing that they show: flags,
// logs, the way descriptors travel between the two programs of a pair, the check of a text
// that has arrived, and how a program ends.
//
// # Flags
//
// They have the names of DOCA's, in both spellings, with one dash or two. A
// program has those of them that it uses; -h lists them.
//
// # Descriptors
//
// The two programs of a pair exchange their descriptors before RDMA can
// begin. -oob says how:
//
//	dir          through files in a folder of the user's own (the default)
//	dir:PATH     through files in that folder
//	tcp:HOST:PORT  the responder listens there, the requester connects to it
//	cm:HOST:PORT  likewise, by connection manager: nothing travels beside RDMA
//	stdio        printed on standard output, pasted on standard input
//
// With -cm, -lp, -sa and -sat, as in DOCA's samples, the connections are made by address,
// and the messages for that carry everything else: -cm is short for -oob cm::13579, or, with -sa, for
// -oob cm:ADDR:13579.
//
// With -ld, -re and -m they go to and come from files, one descriptor each, as
// in DOCA's samples. At the end the requester reports the same way whether it
// has succeeded: a responder that is only read from or written to does not notice
// otherwise.
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
