// Package soft is the public face of the software device: a RoCEv2 device in
// pure Go that needs no adapter, no kernel module and no privileges. It sends
// ordinary UDP packets, and interoperates with the kernel's RDMA stack and with
// adapters.
//
// # Names
//
// A device is named for the network interface that it is on, "soft-lo",
// "soft-eth0", or for one address, "soft-192.0.2.7", "soft-192.0.2.7:5000",
// "soft-[2001:db8::7]:5000". The port is UDP 4791 (IBTA annex A17); where that
// is taken, a device named for its interface takes another, which its GID table
// shows and descriptors carry.
//
// On the loopback interface every device that is opened, in this process or
// another, takes an address of its own from 127.0.0.0/8, so that any number of
// processes on one machine talk on the standard port.
//
// A name may end in options, written like those of a URL:
//
//	soft-lo?loss=0.1&reorder=0.05&seed=7&capture=trace.pcap
//
// Options are loss, duplicate, reorder, corrupt and mark (probabilities from 0 to 1,
// drawn for each packet that arrives), seed (of those draws), delay and rate (how much later, and
// how many bytes a second, packets arrive), srd_seed (of the order of
// messages on SRD queue pairs), capture (a file that takes all packets in the pcap format),
// shards (how many engines can work without waiting for each other), spin (how long the
// device's goroutines look for more before they sleep), congestion (congestion
// control, with "on"), and what can be set to "off": local (shared memory with devices of this
// machine), and segmentation, coalescing and batch (offloads of the kernel).
//
// # Transport services
//
// There are reliable connections (RC), unreliable connections (UC), unreliable
// datagrams (UD), and the scalable reliable datagrams of Amazon's EFA (SRD). A request on UC or UD is complete when its last packet has left,
// and packets leave at a bounded rate, since the peer acknowledges nothing. Of
// what arrives, a message on UC that is not whole, or that no receive
// fits, is dropped, and so is a datagram with another Q_Key, or that no receive
// fits; the receive stays for the next. An error of a send request stops the send
// queue alone (state SQE).
//
// A datagram is one packet of at most the port's MTU. A queue pair for datagrams
// takes them at all addresses of its device. The 40 bytes in front of the data hold
// the IP header, an IPv4 one in the last 20 (annex A17); of its fields the
// addresses, the length and the checksum are those of the packet, the others what
// this device sends.
//
// SRD has the limits, flags and statuses of EFA, for programs that are to run there, and
// reaches other software devices only. Messages come in an order that differs on purpose
// from that in which they are sent, and is the same again for a srd_seed as far as they
// are posted together. docs/software-device.md says what can be relied on.
package soft
