// Package wire reads and writes RoCEv2 packets: the base transport header, its extension
// headers, and the invariant CRC (InfiniBand Architecture Specification, "IBTA" below, volume
// 1 chapter 9 and annex A17).
//
// SRD, Amazon's scalable reliable datagram, has no published packet format. This project
// defines its own opcodes for SRD, and a header after the base header ([SRDETH]).
//
// A packet is the payload of one UDP datagram: headers, payload, zero to three bytes of
// padding, and four bytes of invariant CRC. [Packet] holds the headers of one packet and a
// view of its payload; [Flow] computes and checks the CRC, which also covers the IP and UDP
// headers around the packet.
//
// The package keeps no state. It does not panic, whatever its input, and only the String
// methods allocate. After a call, only Packet.Payload refers to the caller's memory. Functions
// may be called from any goroutine; a Packet is used by one goroutine at a time.
package wire

const (
	// UDPPort is RoCEv2's UDP destination port (IANA "roce").
	UDPPort = 4791
	// DefaultPKey is the partition key every port has (IBTA 10.9.2).
	DefaultPKey = 0xffff
	// ICRCLen is the length of the invariant CRC that ends a packet, in bytes.
	ICRCLen = 4
	// MaxPayloadLen is the largest path MTU of the standard, in bytes, and so
	// the longest payload of one packet.
	MaxPayloadLen = 4096
	// MaxDatagramLen is the longest UDP payload that can be a packet, in bytes.
	MaxDatagramLen = MaxHeaderLen + MaxPayloadLen + ICRCLen
)
