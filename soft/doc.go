// Package soft provides the software device: a RoCEv2 device in pure Go that needs no adapter,
// no kernel module and no privileges. It sends ordinary UDP packets, and interoperates with
// the kernel's RDMA stack and with adapters.
//
// # Names
//
// A device is named for its network interface, "soft-lo", "soft-eth0", or for one address,
// "soft-192.0.2.7", "soft-192.0.2.7:5000", "soft-[2001:db8::7]:5000". The port is UDP 4791
// (IBTA annex A17). If that port is taken, a device named for its interface, or for an address and
// port 0, takes another, which its GID table shows and descriptors carry. If the devices at 4791 are of
// this user and opened in the same way, it shares that port with them, too. Underscores can stand for the
// dashes of a name, as in "soft_eth0".
//
// On the loopback interface every open device, in this process or another, takes its own
// address from 127.0.0.0/8, so that any number of processes on one machine can use the
// standard port. It has the other addresses of the interface too.
//
// A name may end in options, written like those of a URL:
//
//	soft-lo?loss=0.1&reorder=0.05&seed=7&capture=trace.pcap
//
// Options are loss, duplicate, reorder, corrupt and mark (probabilities from 0 to 1, drawn for
// each packet that arrives), seed (of those draws), delay and rate (by how much packets arrive
// later, and how many bytes arrive in a second), srd_seed (of the packet order of SRD),
// capture (a file that receives all packets in the pcap format), shards (how many engines can
// work without waiting for each other), spin (how long the device's goroutines look for
// packets before they sleep), and, with "on", congestion (congestion control) and efa (the device
// looks like an EFA). These can be set to "off": local (shared memory with devices of this machine), and segmentation, coalescing
// and batch (offloads of the kernel).
//
// # Transport services
//
// There are reliable connections (RC), unreliable connections (UC), unreliable datagrams (UD),
// and the scalable reliable datagrams of Amazon's EFA (SRD). A request on UC or UD is complete
// when its last packet has left. Its packets leave at a bounded rate, since the peer
// acknowledges nothing. The device drops a message on UC that is incomplete or fits no
// receive, and a datagram that has another Q_Key or fits no receive; the receive stays for the
// next one. An error of a send request stops the send queue alone (state SQE).
//
// A datagram is one packet of at most the port's MTU. A queue pair for datagrams receives at
// all addresses of its device. The 40 bytes before the data hold the IP header, an IPv4 one in
// the last 20 (annex A17). Its addresses, length and checksum are those of the packet; its
// other fields are those that this device sends.
//
// # SRD
//
// SRD has the limits, flags and statuses of EFA, for programs that are to run there, and
// reaches other software devices only. The device reorders messages on purpose. The same
// srd_seed gives messages that are posted together the same order again.
// docs/software-device.md says what programs can rely on. Requests fail with these statuses,
// and with EFA's vendor errors ([verbs.WC].VendorError):
//
//	StatusFlushed                   1       the queue pair is in error
//	StatusLocalQPOperationError     4       the address handle was destroyed
//	StatusLocalProtectionError      5       wrong local key, or closed region
//	StatusRemoteAccessError         7       wrong remote key, bounds or rights
//	StatusRemoteAborted             8       the peer's device was opened anew, or was unreachable for
//	                                        an hour; the request may have been executed
//	StatusRemoteInvalidRDRequest    9       no such queue pair, wrong state, or another Q_Key
//	StatusRNRRetryExceeded          10      no receive after QPAttr.RNRRetry repetitions
//	                                        (7: for ever; not set: none)
//	StatusRemoteInvalidRequest      11, 18  longer than the receive, which stays for the next
//	                                        message; only one end has UnsolicitedWriteRecv
//	StatusBadResponse               12      the peer's receive names memory that is gone
//	StatusResponseTimeout           13, 15  the peer did not answer for 4 s; 15: it never sent
//	                                        anything
//	StatusRemoteOperationError      14      the peer has no address handle for this device
package soft
