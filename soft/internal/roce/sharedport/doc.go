// Package sharedport lets devices of several processes of one user receive at one address and
// UDP port, as the processes at an adapter do: other implementations know only a GID and a queue
// pair number.
//
// The port has a socket for each slot (link.Slots), and the system chooses the socket by the slot of the
// destination queue pair number (SO_ATTACH_REUSEPORT_CBPF). A device claims slots and gives its queue
// pairs numbers with these. As long as a single process has the port, it has only the sockets of its own
// slots. It opens the others when the next process joins, and hands all of them over. From then on
// every process has all of them, so that none of them ends with its process: the system would move
// another one to its place.
//
// The name of a Unix socket is the claim of a slot: the system frees it when the process ends, however it
// does. The same socket hands over the sockets of the port. Names are abstract (unix(7)), so they
// belong to the network namespace, as ports do. Another process is asked for a bounded time only, since
// it may be stopped. One of another user or container (unixsocket.CheckPeer) gets no sockets, since it may not
// read the packets of this one, and none are taken from it. If it has the port, the lock or all names, devices do
// without: they have their own ports. A child that was forked keeps names, but counts as gone with its parent.
//
// Messages of connection management go to the slot of the listener, or to that in the receiver's communication
// ID, which a device puts into the IDs that it gives out. One slot gets what is for none: requests without a
// listener, and slots that are not in use. It is that of the first device at the address, or of the next one that
// joins after that has gone; until then, connection management goes to the lowest slot that a device has.
//
// A table, in memory that all have, tells this slot, those in use, the listeners, and the UDP port by which each
// slot's device can be reached alone. So devices at one address reach each other as if this port had been named.
// Whoever changes it has the system steer by the whole table.
package sharedport
