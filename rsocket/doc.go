// Package rsocket is net.Conn and net.Listener over RDMA, in the protocol of rsockets, which is
// part of librdmacm (rsocket(7)). A program that speaks net.Conn moves to RDMA by its calls of
// Listen and Dial, and its peers can be C programs: those written for rsockets, and programs of
// sockets under librspreload.so.
//
//	l, err := rsocket.Listen(":7471")
//	go http.Serve(l, handler)
//
//	conn, err := rsocket.Dial(ctx, "storage:7471")
//
// The functions Listen and Dial choose the device by the system's routes. A program that wants a
// certain device, or other settings, calls NewStacks, or New with a device that it has opened, or with that
// of a simulated host (soft/sim). Ports
// are those of RDMA_PS_TCP: a program can listen on the same number over TCP and here. Nothing is
// encrypted, and any peer that reaches the address can connect: use crypto/tls over a Conn as over
// TCP.
//
// # Memory
//
// Each connection has receives and receive memory of its own, so that a peer that does not read makes
// Write wait, when Config.SendBuffer is full, and nothing else. An idle connection holds 8 KiB of
// receive memory and a queue pair with 68 receives; it has no goroutine and no send memory. The
// receive memory of a busy one doubles up to Config.ReceiveBuffer while buffers are filled within
// 200 ms, and shrinks again when they take longer than 5 s. Without data for 5 to 10 s, it goes back to
// 8 KiB if the peer uses this package; C programs cannot give buffers back. All connections together
// hold Config.ReceiveMemory at most. Send memory returns to the Stack when the data has been sent, and
// to the system some seconds later; Config.SendMemory bounds it. io.Copy between a Conn and a socket of
// package net, or from a file, uses this memory directly.
//
// # Ending
//
// CloseWrite ends this end's data, and the peer reads io.EOF behind it. Close does not wait: the
// data that Write has accepted is sent in the background, for Config.Linger at most, and what the
// peer still sends is dropped. If the peer's program dies, Read and Write fail with
// syscall.ECONNRESET: its device or its kernel says so, or answers nothing for Config.SilenceTimeout.
// A peer that violates the protocol loses its connection, and the error matches ErrProtocol.
//
// There is no urgent data. I/O mappings (riomap) are declined, as the protocol allows. Only RC is
// used, so iWARP adapters do not work.
package rsocket
