// Package link carries RoCEv2 packets over an ordinary UDP socket.
//
// A [Socket] is not connected and sets the don't-fragment bit, so the IPv4
// identification of a packet sent alone is 0 and the invariant CRC can be
// computed before sending (InfiniBand Architecture Specification, annex A17).
// Where the kernel has them, the socket uses segmentation offload (UDP_SEGMENT
// in udp(7)), receive coalescing (UDP_GRO) and batched system calls
// (sendmmsg(2), recvmmsg(2)); [Socket.Features] lists those in use.
//
// Packets to one destination form a train: all of one size but the last, which
// may be shorter. A train leaves in one piece and its packets carry the
// identifications 0, 1, 2 and so on; [Socket.Packet] returns that number.
//
// Packets of one train have one [Header]. Multicast groups have sockets of their own inside
// the Socket, since one that is bound to the address of a host gets nothing for a group;
// [Socket.Join] adds one.
//
// # Goroutines
//
// The caller must have one goroutine at a time send (Packet, Bytes, Reference,
// Pending, Flush), one at a time receive (Receive, Unreachable, Join, Leave), and one at a time
// wait (Wait). The three may run at the same time as each other.
// Interrupt, SetDeadline, Close, Addr and Features may be called from any
// goroutine at any time. The package starts a goroutine of its own only for
// [Config.Portable] sockets, which are the only ones outside Linux; it ends
// before Close returns.
package link
