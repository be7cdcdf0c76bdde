package proto

import "time"

// Message is any of the messages below.
type Message interface {
	// fields passes the fields to a coder, in the order in which they are sent.
	fields(c *coder)
}

// messages has each message at its number, which is part of the protocol.
var messages = []Message{
	1: &Hello{}, &Challenge{}, &Proof{}, &Welcome{}, &Refuse{}, &Entries{}, &Plan{}, &Block{}, &Results{},
	&Ack{}, &Discard{}, &Dirs{}, &Text{}, &End{}, &Verdict{}, &ID{}, &Key{}, &Ping{},
}

// Hello opens a transfer: sender to receiver.
type Hello struct {
	Version  uint16
	Transfer [16]byte // the same for all connections of one run of the sender
	Nonce    Token    // random
	Secret   bool     // the sender has a secret
}

// Challenge answers a Hello.
type Challenge struct {
	Version uint16
	Nonce   Token // random
	Secret  bool  // the receiver has a secret
}

// Proof proves that the sender knows the secret. MAC is zero if there is no secret.
type Proof struct{ MAC Token }

// Welcome proves that the receiver knows the secret. It also opens a window to the receiver's
// memory: the address, length and remote key of a memory region. A slot of the window is
// BlockSize bytes.
type Welcome struct {
	MAC    Token
	Addr   uint64
	Length uint32 // 1 to MaxSlots times BlockSize
	RKey   uint32
}

// Refuse ends the transfer, from either end.
type Refuse struct {
	Code Code
	Text string
}

// EntryType is the type of an Entry.
type EntryType uint8

// The types of entries.
const (
	File EntryType = iota
	Directory
	Symlink
	entryTypes
)

// Entry is one file, directory or symbolic link.
type Entry struct {
	Type     EntryType
	Mode     uint16 // permission bits, 0 to 0777
	Size     uint64 // of a File
	Modified time.Time
	Path     string // relative, with slashes
	Target   string // of a Symlink
}

// Entries announces entries, whose numbers start at First.
type Entries struct {
	First   uint32
	Entries []Entry
}

// Decision is what the receiver decides about an entry.
type Decision uint8

// The decisions.
const (
	Send    Decision = iota // send all of it
	Resume                  // send what follows the first Length bytes, if Hash matches them; otherwise all of it
	Have                    // send nothing: the receiver has it, or keeps something else under its name
	Made                    // send nothing: the receiver has made it
	Refused                 // send nothing: Code and Text give the reason
	decisions
)

// Item is the decision on one entry.
type Item struct {
	Decision Decision
	Length   uint64 // of Resume: how many bytes the receiver has
	Hash     Sum    // of Resume: of these bytes
	Code     Code   // of Refused
	Text     string // of Refused
}

// Plan holds the decisions on entries, in order, starting at First.
type Plan struct {
	First uint32
	Items []Item
}

// Segment is a piece of a file in a block.
type Segment struct {
	Entry  uint32
	Offset uint64
	Length uint32
	Last   bool // the last segment of the file
	Hash   Sum  // of the whole file, if Last is set
}

// Block reports that the data of a block is in a slot of the window: the done message.
type Block struct {
	Slot     uint16
	Segments []Segment
}

// Result is the outcome of an entry whose data was sent, or of a directory.
type Result struct {
	Entry uint32
	Code  Code
	Text  string // the reason, unless Code is OK
}

// Results concludes entries.
type Results struct{ Results []Result }

// Ack returns a slot to the sender.
type Ack struct{ Slot uint16 }

// Discard withdraws an entry that the receiver wants: the sender cannot send it.
type Discard struct {
	Entry uint32
	Code  Code // Changed, Unreadable
}

// DirEntry is a directory whose content is complete.
type DirEntry struct {
	Entry    uint32
	Mode     uint16
	Modified time.Time
	Path     string
}

// Dirs sets modes and times of directories. The receiver answers with Results.
type Dirs struct{ Dirs []DirEntry }

// Text is a plain message, UTF-8.
type Text struct{ Text string }

// End reports that the sender has sent everything.
type End struct{ Entries uint32 }

// Verdict is the receiver's answer to End or Text.
type Verdict struct {
	Good   bool   // no entry was refused or failed
	Stored uint32 // entries that the receiver has
	Failed uint32 // entries that it does not have
	Bytes  uint64 // that arrived in blocks of this connection
}

// ID names the sender.
type ID struct{ Text string }

// Key is the receiver's key, in return for the ID.
type Key struct{ Text string }

// Ping shows that the sending program is alive.
type Ping struct{}

// magic begins a Hello and a Challenge, to detect a peer that is another program.
const magic = "verbena transfer"

func (c *coder) magic() {
	b := []byte(magic)
	c.Fixed(b)
	c.check(string(b) == magic, "another protocol")
}

func (m *Hello) fields(c *coder) {
	c.magic()
	c.Uint16(&m.Version)
	c.Fixed(m.Transfer[:])
	c.Fixed(m.Nonce[:])
	c.Bool(&m.Secret)
}

func (m *Challenge) fields(c *coder) {
	c.magic()
	c.Uint16(&m.Version)
	c.Fixed(m.Nonce[:])
	c.Bool(&m.Secret)
}

func (m *Proof) fields(c *coder) { c.Fixed(m.MAC[:]) }

func (m *Welcome) fields(c *coder) {
	c.Fixed(m.MAC[:])
	c.Uint64(&m.Addr)
	c.Uint32(&m.Length)
	c.check(m.Length > 0 && m.Length%BlockSize == 0 && m.Length <= MaxSlots*BlockSize, "a window of %d bytes", m.Length)
	c.Uint32(&m.RKey)
}

func (m *Refuse) fields(c *coder) {
	c.failure(&m.Code)
	c.text(&m.Text, MaxNote)
}

func (m *Entries) fields(c *coder) {
	c.Uint32(&m.First)
	list(c, &m.Entries, MaxEntries, 17, func(e *Entry) {
		c.Uint8((*uint8)(&e.Type))
		c.check(e.Type < entryTypes, "type %d of an entry", e.Type)
		c.mode(&e.Mode)
		c.time(&e.Modified)
		c.text(&e.Path, MaxPath)
		switch e.Type {
		case File:
			c.Uint64(&e.Size)
			c.check(e.Size <= 1<<63-1, "a file of %d bytes", e.Size)
		case Symlink:
			c.text(&e.Target, MaxPath)
		}
	})
}

func (m *Plan) fields(c *coder) {
	c.Uint32(&m.First)
	list(c, &m.Items, MaxEntries, 1, func(it *Item) {
		c.Uint8((*uint8)(&it.Decision))
		c.check(it.Decision < decisions, "decision %d", it.Decision)
		switch it.Decision {
		case Resume:
			c.Uint64(&it.Length)
			c.Fixed(it.Hash[:])
		case Refused:
			c.failure(&it.Code)
			c.text(&it.Text, MaxNote)
		}
	})
}

func (m *Block) fields(c *coder) {
	c.slot(&m.Slot)
	list(c, &m.Segments, MaxSegments, 17, func(s *Segment) {
		c.Uint32(&s.Entry)
		c.Uint64(&s.Offset)
		c.Uint32(&s.Length)
		c.check(s.Length >= 1 && s.Length <= BlockSize, "a segment of %d bytes", s.Length)
		c.Bool(&s.Last)
		if s.Last {
			c.Fixed(s.Hash[:])
		}
	})
	c.check(m.Length() <= BlockSize, "a block of %d bytes", m.Length())
}

// Length is the number of bytes of all segments.
func (m *Block) Length() int {
	n := 0
	for i := range m.Segments {
		n += int(m.Segments[i].Length)
	}
	return n
}

func (m *Results) fields(c *coder) {
	list(c, &m.Results, MaxSegments, 5, func(r *Result) {
		c.Uint32(&r.Entry)
		c.code(&r.Code)
		if r.Code != OK {
			c.text(&r.Text, MaxNote)
		}
	})
}

func (m *Ack) fields(c *coder) { c.slot(&m.Slot) }

func (m *Discard) fields(c *coder) {
	c.Uint32(&m.Entry)
	c.failure(&m.Code)
}

func (m *Dirs) fields(c *coder) {
	list(c, &m.Dirs, MaxEntries, 20, func(d *DirEntry) {
		c.Uint32(&d.Entry)
		c.mode(&d.Mode)
		c.time(&d.Modified)
		c.text(&d.Path, MaxPath)
	})
}

func (m *Text) fields(c *coder) { c.utf8(&m.Text, MaxText) }
func (m *End) fields(c *coder)  { c.Uint32(&m.Entries) }

func (m *Verdict) fields(c *coder) {
	c.Bool(&m.Good)
	c.Uint32(&m.Stored)
	c.Uint32(&m.Failed)
	c.Uint64(&m.Bytes)
}

func (m *ID) fields(c *coder)  { c.utf8(&m.Text, MaxID) }
func (m *Key) fields(c *coder) { c.utf8(&m.Text, MaxID) }
func (*Ping) fields(*coder)    {}
