package wire

import (
	"fmt"
	"strings"
)

// Opcode is the first byte of the base transport header: the transport service
// in its upper three bits and the operation in its lower five (IBTA 9.2.1,
// table 38).
type Opcode uint8

// Service is the transport service that an opcode belongs to, in its upper
// three bits.
type Service uint8

// The transport services.
const (
	ServiceRC Service = 0x00
	ServiceUC Service = 0x20
	ServiceUD Service = 0x60
	// ServiceXRC has the opcodes of RC. Each request has an XRCETH (annex A14).
	ServiceXRC Service = 0xa0
	// ServiceCNP has a single opcode, CNP.
	ServiceCNP Service = 0x80
	// ServiceSRD is defined by this project. It lies in the upper half of the range that table
	// 38 reserves for manufacturers; MRC (multipath RC, OCP) uses opcodes of the lower half.
	ServiceSRD Service = 0xe0
)

const serviceMask = 0xe0

// Service is the transport service of the opcode.
func (o Opcode) Service() Service { return Service(o & serviceMask) }

// Operation returns the opcode of the same operation on a reliable connection.
func (o Opcode) Operation() Opcode { return o &^ serviceMask }

// On returns the opcode of the same operation on transport service s, which may not have that
// operation.
func (o Opcode) On(s Service) Opcode { return o.Operation() | Opcode(s) }

// Operations of a reliable connection.
const (
	RCSendFirst          Opcode = 0x00
	RCSendMiddle         Opcode = 0x01
	RCSendLast           Opcode = 0x02
	RCSendLastImm        Opcode = 0x03
	RCSendOnly           Opcode = 0x04
	RCSendOnlyImm        Opcode = 0x05
	RCWriteFirst         Opcode = 0x06
	RCWriteMiddle        Opcode = 0x07
	RCWriteLast          Opcode = 0x08
	RCWriteLastImm       Opcode = 0x09
	RCWriteOnly          Opcode = 0x0a
	RCWriteOnlyImm       Opcode = 0x0b
	RCReadRequest        Opcode = 0x0c
	RCReadResponseFirst  Opcode = 0x0d
	RCReadResponseMiddle Opcode = 0x0e
	RCReadResponseLast   Opcode = 0x0f
	RCReadResponseOnly   Opcode = 0x10
	RCAcknowledge        Opcode = 0x11
	RCAtomicAcknowledge  Opcode = 0x12
	RCCompareSwap        Opcode = 0x13
	RCFetchAdd           Opcode = 0x14
	RCSendLastInvalidate Opcode = 0x16
	RCSendOnlyInvalidate Opcode = 0x17
	// RCAtomicWrite is answered by an empty RCReadResponseOnly (annex A19).
	RCAtomicWrite Opcode = 0x1d
)

// Operations of an unreliable connection.
const (
	UCSendFirst    Opcode = 0x20
	UCSendMiddle   Opcode = 0x21
	UCSendLast     Opcode = 0x22
	UCSendLastImm  Opcode = 0x23
	UCSendOnly     Opcode = 0x24
	UCSendOnlyImm  Opcode = 0x25
	UCWriteFirst   Opcode = 0x26
	UCWriteMiddle  Opcode = 0x27
	UCWriteLast    Opcode = 0x28
	UCWriteLastImm Opcode = 0x29
	UCWriteOnly    Opcode = 0x2a
	UCWriteOnlyImm Opcode = 0x2b
)

// Operations of an unreliable datagram.
const (
	UDSendOnly    Opcode = 0x64
	UDSendOnlyImm Opcode = 0x65
)

// CNP is a congestion notification packet, for a queue pair of any connected service: the
// packets that it sends meet congestion (annex A17.9.3).
const CNP Opcode = 0x81

// reservedLen is the length of the field after a CNP's base transport header, all zero.
const reservedLen = 16

// Operations of SRD. The lower five bits are those of the most similar operation of a reliable
// connection.
const (
	SRDSend         Opcode = 0xe4
	SRDSendImm      Opcode = 0xe5
	SRDWrite        Opcode = 0xea // any part of a write
	SRDWriteImm     Opcode = 0xeb // the last part, sent after all others were acknowledged
	SRDReadRequest  Opcode = 0xec
	SRDReadResponse Opcode = 0xf0
	SRDAcknowledge  Opcode = 0xf1 // its payload is a bitmap of the packets that have arrived
	SRDNak          Opcode = 0xf2 // refuses one packet
	SRDHello        Opcode = 0xf8 // asks for the peer's token
	SRDHelloReply   Opcode = 0xf9
)

// Flags for the headers and payload that may follow the base transport header. Headers appear
// on the wire in the order of these bits.
const (
	hasSRDETH = 1 << iota
	hasDETH
	hasXRCETH
	hasRETH
	hasOffset
	hasSegments
	hasAtomicETH
	hasAETH
	hasAtomicAck
	hasImm
	hasIETH
	hasReserved
	hasPayload
)

// opcodeParts has the name in the standard of each opcode, and what follows its base transport header.
// Unreliable connections have the sends and writes of reliable ones, and XRC has all their operations.
var opcodeParts = map[Opcode]struct {
	name  string
	parts uint16 // of the has… bits
}{
	RCSendFirst:          {"RC SEND First", hasPayload},
	RCSendMiddle:         {"RC SEND Middle", hasPayload},
	RCSendLast:           {"RC SEND Last", hasPayload},
	RCSendLastImm:        {"RC SEND Last with Immediate", hasImm | hasPayload},
	RCSendOnly:           {"RC SEND Only", hasPayload},
	RCSendOnlyImm:        {"RC SEND Only with Immediate", hasImm | hasPayload},
	RCWriteFirst:         {"RC RDMA WRITE First", hasRETH | hasPayload},
	RCWriteMiddle:        {"RC RDMA WRITE Middle", hasPayload},
	RCWriteLast:          {"RC RDMA WRITE Last", hasPayload},
	RCWriteLastImm:       {"RC RDMA WRITE Last with Immediate", hasImm | hasPayload},
	RCWriteOnly:          {"RC RDMA WRITE Only", hasRETH | hasPayload},
	RCWriteOnlyImm:       {"RC RDMA WRITE Only with Immediate", hasRETH | hasImm | hasPayload},
	RCReadRequest:        {"RC RDMA READ Request", hasRETH},
	RCReadResponseFirst:  {"RC RDMA READ response First", hasAETH | hasPayload},
	RCReadResponseMiddle: {"RC RDMA READ response Middle", hasPayload},
	RCReadResponseLast:   {"RC RDMA READ response Last", hasAETH | hasPayload},
	RCReadResponseOnly:   {"RC RDMA READ response Only", hasAETH | hasPayload},
	RCAcknowledge:        {"RC Acknowledge", hasAETH},
	RCAtomicAcknowledge:  {"RC ATOMIC Acknowledge", hasAETH | hasAtomicAck},
	RCCompareSwap:        {"RC CmpSwap", hasAtomicETH},
	RCFetchAdd:           {"RC FetchAdd", hasAtomicETH},
	RCSendLastInvalidate: {"RC SEND Last with Invalidate", hasIETH | hasPayload},
	RCSendOnlyInvalidate: {"RC SEND Only with Invalidate", hasIETH | hasPayload},
	RCAtomicWrite:        {"RC ATOMIC WRITE", hasRETH | hasPayload},
	UDSendOnly:           {"UD SEND Only", hasDETH | hasPayload},
	UDSendOnlyImm:        {"UD SEND Only with Immediate", hasDETH | hasImm | hasPayload},
	CNP:                  {"CNP", hasReserved},
	SRDSend:              {"SRD SEND", hasSRDETH | hasDETH | hasPayload},
	SRDSendImm:           {"SRD SEND with Immediate", hasSRDETH | hasDETH | hasImm | hasPayload},
	SRDWrite:             {"SRD RDMA WRITE", hasSRDETH | hasDETH | hasRETH | hasOffset | hasPayload},
	SRDWriteImm:          {"SRD RDMA WRITE with Immediate", hasSRDETH | hasDETH | hasRETH | hasOffset | hasImm | hasPayload},
	SRDReadRequest:       {"SRD RDMA READ Request", hasSRDETH | hasDETH | hasRETH | hasOffset | hasSegments},
	SRDReadResponse:      {"SRD RDMA READ response", hasSRDETH | hasPayload},
	SRDAcknowledge:       {"SRD Acknowledge", hasSRDETH | hasPayload},
	SRDNak:               {"SRD NAK", hasSRDETH | hasAETH},
	SRDHello:             {"SRD Hello", hasSRDETH},
	SRDHelloReply:        {"SRD Hello Reply", hasSRDETH},
}

type opcodeInfo struct {
	parts     uint16 // of the has… bits
	headerLen uint8  // bytes; zero if the opcode is unknown
}

// A single array for the hot path. Its index is a byte, so no bounds check is needed.
var opcodeInfos = makeOpcodeInfos()

func makeOpcodeInfos() (infos [256]opcodeInfo) {
	for op, row := range opcodeParts {
		n := BTHLen
		for _, ext := range []struct {
			part uint16
			len  int
		}{
			{hasSRDETH, SRDETHLen}, {hasDETH, DETHLen}, {hasXRCETH, XRCETHLen}, {hasRETH, RETHLen}, {hasOffset, OffsetLen}, {hasSegments, SegmentsLen}, {hasAtomicETH, AtomicETHLen}, {hasAETH, AETHLen},
			{hasAtomicAck, AtomicAckLen}, {hasImm, ImmLen}, {hasIETH, IETHLen}, {hasReserved, reservedLen},
		} {
			if row.parts&ext.part != 0 {
				n += ext.len
			}
		}
		infos[op] = opcodeInfo{parts: row.parts, headerLen: uint8(n)}
	}
	for op := RCSendFirst; op <= RCWriteOnlyImm; op++ {
		infos[op.On(ServiceUC)] = infos[op]
	}
	for op := RCSendFirst; op <= RCAtomicWrite; op++ {
		info := infos[op]
		if info.headerLen != 0 && info.parts&hasAETH == 0 && op != RCReadResponseMiddle {
			info.parts |= hasXRCETH
			info.headerLen += XRCETHLen
		}
		infos[op.On(ServiceXRC)] = info
	}
	return infos
}

// Known reports whether the opcode is one of this package's constants.
func (o Opcode) Known() bool { return opcodeInfos[o].headerLen != 0 }

// HeaderLen returns the total length of the base transport header and of the opcode's
// extension headers, in bytes. It is zero for an unknown opcode.
func (o Opcode) HeaderLen() int { return int(opcodeInfos[o].headerLen) }

// HasRETH reports whether a [RETH] follows.
func (o Opcode) HasRETH() bool { return opcodeInfos[o].parts&hasRETH != 0 }

// HasAETH reports whether an [AETH] follows.
func (o Opcode) HasAETH() bool { return opcodeInfos[o].parts&hasAETH != 0 }

// HasImm reports whether immediate data follows.
func (o Opcode) HasImm() bool { return opcodeInfos[o].parts&hasImm != 0 }

// HasAtomicETH reports whether an [AtomicETH] follows.
func (o Opcode) HasAtomicETH() bool { return opcodeInfos[o].parts&hasAtomicETH != 0 }

// HasIETH reports whether a remote key to invalidate follows.
func (o Opcode) HasIETH() bool { return opcodeInfos[o].parts&hasIETH != 0 }

// IsReadResponse reports whether the packet is a response to a read or an atomic write.
func (o Opcode) IsReadResponse() bool {
	if o.Service() == ServiceXRC {
		o = o.Operation()
	}
	switch o {
	case RCReadResponseFirst, RCReadResponseMiddle, RCReadResponseLast, RCReadResponseOnly, SRDReadResponse:
		return true
	}
	return false
}

// HasPayload reports whether a payload may follow the headers. The transport checks whether it
// may be empty, which depends on the path MTU.
func (o Opcode) HasPayload() bool { return opcodeInfos[o].parts&hasPayload != 0 }

// String is the operation's name in the standard; an unknown opcode prints as a
// number.
func (o Opcode) String() string {
	switch {
	case !o.Known():
	case o.Service() == ServiceUC:
		return "UC" + strings.TrimPrefix(o.Operation().String(), "RC")
	case o.Service() == ServiceXRC:
		return "X" + o.Operation().String()
	default:
		return opcodeParts[o].name
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}
