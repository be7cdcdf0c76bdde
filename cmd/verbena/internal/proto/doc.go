// Package proto has the messages of verbena send and receive, and their encoding. All messages
// are RDMA sends on one reliable connection.
//
//  1. The sender opens with Hello, and the receiver answers with Challenge. Proof and Welcome
//     carry the two proofs. Welcome also carries address, length and key of the receiver's window.
//  2. The sender announces files, directories and links (Entries). The receiver decides about
//     each (Plan): send, resume, have, made, or refused with the reason.
//  3. The sender writes data into a free slot of the window, and sends Block behind the write. On
//     a reliable connection the data is in place when the message arrives (IBTA 9.5). The receiver
//     copies it to the file, and returns slots (Ack). Small files share slots. At the end of a
//     file, the receiver compares its hash.
//  4. Each wanted file ends with one result (Results). Discard means that the sender cannot send
//     it. When all files have ended, directories get their times, and those to be read-only
//     become so (Dirs).
//  5. The sender ends with End, and the receiver answers with Verdict. ID and Key follow.
//
// Either end can break off with Refuse. Each end sends Ping every 10 seconds; after 3 minutes
// without a message the connection counts as dead.
//
// Integers are big-endian and of fixed width, so that each message has one encoding. Decode is
// strict: it accepts only what Encode produces, and checks every length and count before it
// allocates.
package proto

import "errors"

// Version is the version of the protocol; the two ends must have the same.
const Version = 2

// Limits that both ends obey. A peer that exceeds one is refused.
const (
	// BlockSize is how much of a file is written and acknowledged at a time: the size of one
	// slot of the receiver's window.
	BlockSize = 1 << 20
	// MaxMessage is the longest message, in bytes.
	MaxMessage = 16 << 10
	// MaxSlots is the maximum number of slots in a window.
	MaxSlots = 64
	// MaxPath and MaxComponent bound the names of files, in bytes.
	MaxPath, MaxComponent = 4096, 255
	// MaxEntries is the maximum number of entries in one message.
	MaxEntries = 256
	// MaxSegments is the maximum number of files in one block.
	MaxSegments = 256
	// Outstanding is the maximum number of entries that are announced and not concluded.
	Outstanding = 2048
	// Unplanned is the maximum number of Entries messages that the receiver has not answered
	// with a Plan.
	Unplanned = 8
	// MaxText is the length of the longest plain message, MaxNote of the longest reason, and
	// MaxID of the longest ID and key.
	MaxText, MaxNote, MaxID = MaxMessage - 8, 512, 256
)

// SumSize is the length of a Sum, in bytes.
const SumSize = 16

// Sum is the hash of a file, or of its beginning: XXH3 with 128 bits. It detects accidental
// damage in memory, on the way and on disk, and costs little beside the copies. It does not
// defend against an attacker on the path, who can change the hash along with the data.
type Sum [SumSize]byte

// Token is a nonce, or a proof of the secret.
type Token [32]byte

var (
	// ErrMalformed: the received bytes are no message of this protocol.
	ErrMalformed = errors.New("malformed message")
	// ErrTooBig: the content does not fit into a message.
	ErrTooBig = errors.New("message too long")
)
