// Package pingpong is what the three ping-pong programs have in common and are
// not there to show: flags, the TCP handshake, the wait for completions, and the
// figures at the end.
//
// # Handshake
//
// It is that of the ibverbs-utils (ibv_rc_pingpong(1) and its like), so that each
// program here talks to its namesake there. The sides send each other their
// address as a text of 52 bytes, the last of them NUL:
//
//	LID:QPN:PSN:GID
//
// in hexadecimal, 4, 6, 6 and 32 digits. The client connects, sends its address,
// reads the server's and writes the 5 bytes "done\0". The server brings its queue
// pair up before it answers, so it is ready when the client has the answer. Then
// the client sends first. The handshake has no field for a UDP port, so it is RoCEv2's own,
// 4791.
package pingpong
