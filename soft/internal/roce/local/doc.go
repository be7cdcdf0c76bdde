// Package local carries packets between two software devices of one machine through memory
// that they share, without the network; it fails connections whose peer process has died.
//
// [Peers] are the devices of this machine that one shard of a device can reach. A queue pair
// has a [Path] to one of them: its packets go through a channel while there is one, and
// otherwise by UDP. The device implements [Shard] and [Endpoint] for this package.
//
// A [Channel] joins two devices. It has one piece of shared memory, with a ring of records for
// each direction, and a Unix socket connection, over which each end wakes the other on
// request. Devices find each other by abstract Unix sockets (unix(7)), whose names hold the
// address and UDP port of a device. Such a name is visible exactly within its network
// namespace. When a process dies, its connections end, and the other end notices at once. An
// orderly end is announced; otherwise the other end asks the kernel whether the process is
// dead.
//
// The other process is trusted no more than a network, and may stop at any point. What is in
// shared memory is read once, checked, and used as it was read. A corrupt ring ends its
// channel and nothing else. Waking a process never blocks. (A write to an eventfd of the other
// process could: that process decides whether it is non-blocking.) The memory is sealed
// (memfd_create(2)), so that it cannot be truncated, which would kill a process that reads it.
// Only processes of the same user (SO_PEERCRED), in the same PID and user namespaces, are
// accepted: the kernel lets them read each other's memory anyway. A connection takes files only
// after that check.
//
// A large payload need not go through the ring. Memory that the device has allocated for this
// (see [Memory]) is mapped by the other process, read-only, as a whole and until it is freed.
// The record then only says where the payload is.
//
// All this needs Linux. On other systems, Listen and Dial fail with an error that matches
// [errors.ErrUnsupported].
package local
