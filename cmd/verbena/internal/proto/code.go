package proto

import "strconv"

// Code is the outcome of a file, or the reason why a transfer ended.
type Code uint8

// The codes. Their numbers are part of the protocol.
const (
	OK           Code = iota
	Failed            // anything that has no code of its own
	Exists            // another file has that name
	UnsafePath        // the name, or the target of a link, leads outside the folder
	NoPermission      // the operating system does not allow it
	NoSpace           // the disk is full
	Changed           // the file changed while it was sent
	Unreadable        // the sender cannot read it
	BadType           // neither file, directory nor symbolic link
	Busy              // another transfer is writing the file
	TooBig            // larger than the receiver takes
	NeedSecret        // the receiver accepts nothing from that address without a secret
	WrongSecret       // the proof of the secret is wrong
	WrongVersion      // the ends speak different versions
	BadProtocol       // a message that is malformed or not allowed at this point
	BadData           // the data was damaged on the way
	TooMany           // the receiver has its maximum number of transfers
	Stopped           // the program was interrupted
	codes             // how many there are
)

var codeNames = [codes]string{
	"ok", "failed", "exists", "unsafe-path", "no-permission", "no-space", "changed", "unreadable", "bad-type",
	"busy", "too-big", "need-secret", "wrong-secret", "wrong-version", "bad-protocol", "bad-data", "too-many", "stopped",
}

// String is the name that --json prints.
func (c Code) String() string {
	if c < codes {
		return codeNames[c]
	}
	return "Code(" + strconv.Itoa(int(c)) + ")"
}
