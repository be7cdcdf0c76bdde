// Package local carries packets between two software devices of one machine through memory
// that they share, without the network.
//
// [Peers] are the devices of this machine as one shard of a device reaches them. A queue pair has
// a [Path] to one of them: its packets go through a channel while there is one, and else by UDP.
// What the package needs of the device is [Host] and [Endpoint].
//
// Two devices are joined by a [Channel]: one piece of shared memory with a ring of records
// for each direction, and a connection by a Unix socket, over which one wakes the other if
// that asked for it. They find each other by a socket of the abstract kind (unix(7)), whose
// name holds the address and UDP port of a device: it can be reached exactly within its
// network namespace. When a process dies, its connections end: the other end notices at once,
// and can tell that from an end in good order, which is announced, by asking the kernel
// whether the process is dead.
//
// The other process is treated like a network, and is not even trusted to stand still: what
// lies in shared memory is read once, checked, and used as it was read. A ring in disorder
// ends its channel and nothing else. To wake a process never blocks, which writing to an
// eventfd of the other's could (it decides whether that is non-blocking). The memory is
// sealed (memfd_create(2)), so that it cannot be cut short, which would end a process that
// reads it. Only processes of the same
// user (SO_PEERCRED), in the same PID and user namespaces, are taken: the kernel lets them read
// each other's memory anyway.
//
// A large payload need not go through the ring: memory that the device has made for it (see
// [Memory]) is shown to the other process, read-only, as a whole and until it is freed, and
// the record only says where the payload lies.
//
// Other systems than Linux have none of this: there, Listen and Dial fail with an error that
// matches [errors.ErrUnsupported].
package local
