package proto

import "strconv"

// Code says what became of a file, or why a transfer ended.
type Code uint8

// The codes. Their numbers are part of the protocol.
const (
	OK           Code = iota
	Failed            // anything that has no code of its own
	Exists            // another file of that name is there
	UnsafePath        // the name, or the target of a link, leads out of the folder
	NoPermission      // the operating system does not allow it
	NoSpace           // the disk is full
	Changed           // the file changed while it was sent
	Unreadable        // the sender cannot read it
	BadType           // it is neither file, directory nor symbolic link
	Busy              // another transfer is writing it
	TooBig            // larger than the receiver takes
	NeedSecret        // the receiver takes nothing from there without a secret
	WrongSecret       // the proof of the secret is wrong
	WrongVersion      // the ends speak different versions
	BadProtocol       // a message that is wrong at this point
	BadData           // what arrived is not what was sent
	TooMany           // the receiver has as many transfers as it takes
	Stopped           // the program was told to stop
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
