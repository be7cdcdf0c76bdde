package capture

import (
	"net/netip"
	"time"
)

// Report is what a capture shows. Times are those of the file.
type Report struct {
	Packets     int64            `json:"packets"`     // of RoCEv2
	First       time.Time        `json:"first"`       // when the first of them was recorded
	Last        time.Time        `json:"last"`        // when the last was
	Opcodes     map[string]int64 `json:"opcodes"`     // packets by the standard's name of their opcode
	Messages    map[string]int64 `json:"cm_messages"` // of the connection manager, by name: REQ, REP …
	Connections []*Connection    `json:"connections"` // in the order of their first packets
	LeftOut     LeftOut          `json:"left_out"`    // connections that are not in the list
	Ignored     Ignored          `json:"ignored"`     // what belongs to no connection
}

// LeftOut counts connections that were dropped to bound the memory, least recently used first.
type LeftOut struct {
	Connections int64 `json:"connections"` // how many
	Packets     int64 `json:"packets"`     // of them
	Bytes       int64 `json:"bytes"`       // of payload
}

// Ignored counts what belongs to no connection.
type Ignored struct {
	Other      int64 `json:"other"`       // frames that are no UDP, or UDP but no RoCEv2
	LinkType   int64 `json:"link_type"`   // frames of a link type that is not supported
	Blocks     int64 `json:"blocks"`      // packets, of any protocol, in Simple or obsolete Packet Blocks of pcapng
	Fragments  int64 `json:"fragments"`   // fragments of IP packets
	Malformed  int64 `json:"malformed"`   // packets to port 4791 that are no RoCEv2, or were cut too short
	ICRCErrors int64 `json:"icrc_errors"` // packets of no known connection with a wrong ICRC
	// Unchecked counts packets whose ICRC could not be checked, because they were cut or their
	// adapter had not computed it. They do count for their connections.
	Unchecked int64 `json:"unchecked"`
}

// Connection is two queue pairs that talk to each other. With SRD it is two devices.
type Connection struct {
	// Ends are the two ends; the first sent the first packet, or asked for the connection.
	Ends      [2]End       `json:"ends"`
	Service   string       `json:"service"`             // RC, XRC, UC, UD or SRD
	Port      uint16       `json:"port,omitempty"`      // of RDMA CM, on which the second end listens; 0: unknown
	MTU       int          `json:"mtu,omitempty"`       // of the path, in bytes; 0: unknown
	First     time.Time    `json:"first"`               // when its first packet or message was recorded
	Last      time.Time    `json:"last"`                // when the last was
	Events    []Event      `json:"events,omitempty"`    // of the connection manager; at most 32
	Sent      [2]Direction `json:"sent"`                // the packets of each end, in the order of Ends
	Outcome   string       `json:"outcome"`             // how it ended, as far as the capture shows it
	Diagnosis string       `json:"diagnosis,omitempty"` // a sentence: what went wrong, and what to do. Empty: nothing
}

// End is one end of a connection.
type End struct {
	Addr netip.Addr `json:"addr"` // of its device
	QPN  uint32     `json:"qpn"`  // of its queue pair; 0: unknown, or several
}

// Direction is what one end sent: requests, and the responses to those of the peer.
type Direction struct {
	// Packets counts all, with repeats. A train that was recorded as one packet counts as the
	// packets in it. A packet that was recorded where it was sent and where it was received counts
	// once.
	Packets   int64     `json:"packets"`
	Bytes     int64     `json:"bytes"`      // of payload, without repeats
	Sends     int64     `json:"sends"`      // operations, also unfinished ones
	Writes    int64     `json:"writes"`     // operations
	Reads     int64     `json:"reads"`      // operations
	Atomics   int64     `json:"atomics"`    // operations; atomic writes too
	RoundTrip RoundTrip `json:"round_trip"` // of its requests
	Repeats   Repeats   `json:"repeats"`    // of its requests
	// LostBefore counts packets that were lost before the place of the capture. UD is not counted.
	LostBefore int64 `json:"lost_before"`
	// LostAfter counts packets that the peer missed behind it: they were lost, or overtaken. It is a
	// lower limit. If the capture has what was sent and what was received, it is the number of
	// those lost.
	LostAfter  int64 `json:"lost_after"`
	Gaps       int64 `json:"gaps"`        // how often packets were missing in the sequence
	Unrecorded int64 `json:"unrecorded"`  // missing packets that the peer acknowledged: only the capture lacks them
	Reordered  int64 `json:"reordered"`   // packets that came after later ones, and are no repeats
	Marked     int64 `json:"ecn_marked"`  // packets with "congestion experienced"
	Notified   int64 `json:"cnps"`        // congestion notification packets
	ICRCErrors int64 `json:"icrc_errors"` // packets that were changed on the way; not in Packets

	SequenceNAKs int64            `json:"sequence_naks"`  // that this end sent, as it missed a packet
	RNRNAKs      int64            `json:"rnr_naks"`       // that this end sent, as it had no receive
	NAKs         map[string]int64 `json:"naks,omitempty"` // other refusals that this end sent, by their reason
}

// Repeats counts repeated packets by their cause.
type Repeats struct {
	Sequence   int64 `json:"sequence_nak"` // the peer missed a packet, and said so
	RNR        int64 `json:"rnr_nak"`      // the peer had no receive
	Response   int64 `json:"response"`     // a response did not arrive in order
	TimeOut    int64 `json:"time_out"`     // no acknowledgement was recorded
	AckLost    int64 `json:"ack_lost"`     // the acknowledgement was recorded, but did not arrive, or too late
	Duplicated int64 `json:"duplicated"`   // not by the sender: by the network, or in the capture alone
}

// Total is the number of packets that their sender repeated.
func (r *Repeats) Total() int64 { return r.Sequence + r.RNR + r.Response + r.TimeOut + r.AckLost }

// RoundTrip is the time from a request that was not repeated to its acknowledgement, or to the first
// response, at the place of the capture.
type RoundTrip struct {
	Count int64         `json:"count"`   // requests that were measured
	Min   time.Duration `json:"min_ns"`  // the shortest
	Mean  time.Duration `json:"mean_ns"` // their mean
	Max   time.Duration `json:"max_ns"`  // the longest

	sum time.Duration
}

func (r *RoundTrip) add(d time.Duration) {
	if r.Count == 0 || d < r.Min {
		r.Min = d
	}
	r.Count++
	r.sum += d
	r.Max = max(r.Max, d)
	r.Mean = r.sum / time.Duration(r.Count)
}

// Event is a message of the connection manager.
type Event struct {
	At      time.Time  `json:"at"`               // when it was recorded first
	From    netip.Addr `json:"from"`             // its sender
	Message string     `json:"message"`          // REQ, REP, RTU, REJ, DREQ, DREP …
	Reason  string     `json:"reason,omitempty"` // of a REJ or SIDR_REP
	Times   int        `json:"times"`            // how often it was sent

	sent, received int // how often it was recorded at each place, if the file tells which
}
