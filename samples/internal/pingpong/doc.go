// Package pingpong has the common code of the three ping-pong programs that is not worth
// showing in each: flags, the TCP handshake, the wait for completions, and the results.
//
// # Handshake
//
// The handshake is that of the ibverbs-utils (ibv_rc_pingpong(1) and the like), so each
// program here interoperates with its C counterpart. The sides send each other their address
// as a text of 52 bytes, the last of them NUL:
//
//	LID:QPN:PSN:GID
//
// in hexadecimal, 4, 6, 6 and 32 digits. The client connects, sends its address, reads the
// server's and writes the 5 bytes "done\0". The server brings its queue pair up before it
// answers, so it is ready when the client has the answer. Then the client sends first. The
// handshake has no field for a UDP port: it is that of RoCEv2, 4791.
package pingpong
