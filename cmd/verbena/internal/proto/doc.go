// Package proto has the messages of verbena send and receive, and their encoding. All are RDMA
// sends on one reliable connection.
//
//  1. The sender opens with Hello, and the receiver answers with Challenge. Proof and Welcome
//     carry the two proofs. Welcome also carries address, length and key of the receiver's window.
//  2. The sender announces files, directories and links (Entries). The receiver decides about
//     each (Plan): send, resume, have, made, or refused with the reason.
//  3. The sender writes data into a free slot of the window, and sends Block behind the write. On
//     a reliable connection the data is in place when the message arrives (IBTA 9.5). The receiver
//     copies it to the file, and returns slots (Ack). Small files share slots. The hash of a file
//     is compared at its end.
//  4. Each wanted file ends with one result (Results). Discard says that the sender cannot send
//     it. When all files have ended, directories get their permissions and times (Dirs).
//  5. The sender ends with End, and the receiver answers with Verdict. ID and Key follow.
//
// Either end can break off with Refuse. Each end sends Ping every 10 seconds; after 3 minutes
// without a message the connection counts as dead.
//
// Integers are big-endian and of fixed width, so that there is one encoding of each
// message. Decode is strict: it takes nothing that Encode does not write, and bounds every
// length and count before it allocates.
package proto

import "errors"

// Version is the version of the protocol; the two ends must have the same.
const Version = 2

// Limits that both ends hold to. Whoever exceeds one is refused.
const (
	// BlockSize is how much of a file is written and acknowledged at a time, and what one
	// slot of the receiver's window holds.
	BlockSize = 1 << 20
	// MaxMessage is the longest message, in bytes.
	MaxMessage = 16 << 10
	// MaxSlots is how many slots a window has at most.
	MaxSlots = 64
	// MaxPath and MaxComponent bound the names of files, in bytes.
	MaxPath, MaxComponent = 4096, 255
	// MaxEntries is how many files one message announces at most.
	MaxEntries = 256
	// MaxSegments is how many files one block holds at most.
	MaxSegments = 256
	// Outstanding is how many entries may be announced and not concluded.
	Outstanding = 2048
	// Unplanned is how many Entries messages may be without a Plan.
	Unplanned = 8
	// MaxText is the longest plain message; MaxNote the longest reason, MaxID the longest
	// ID and key.
	MaxText, MaxNote, MaxID = MaxMessage - 8, 512, 256
)

// SumSize is the length of a Sum, in bytes.
const SumSize = 16

// Sum is the hash of a file, or of its beginning: XXH3 with 128 bits. It shows accidents, in
// memory, on the way and on disk, and costs little beside the copies. It is no defence
// against an attacker who can change what is on the way: such an attacker can change the
// hash too.
type Sum [SumSize]byte

// Token is a nonce, or a proof of the secret.
type Token [32]byte

var (
	// ErrMalformed: what came is no message of this protocol.
	ErrMalformed = errors.New("malformed message")
	// ErrTooBig: what is to be sent does not fit into a message.
	ErrTooBig = errors.New("message too long")
)
